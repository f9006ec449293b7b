// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Image writes a container image as an OCI image layout: a directory that tools import and push.
//
//	image -o DIR -version VERSION -date SECONDS ARCH=ROOT...
//
// The image of an architecture has the files below ROOT in one layer, and nothing else. For each image, the layout also
// has an artifact with the software bill of materials (CycloneDX). This bill is a file below ROOT. The subject of the
// artifact is the image, so registries list the artifact as a referrer (OCI image specification 1.1, "Image Manifest").
// Some tools copy an image without its referrers. For these tools, the index of the layout also lists the artifact, as
// BuildKit's indexes do. The artifact's platform is unknown/unknown, so no runtime uses the artifact as an image.
//
// The result does not depend on the machine, the time or the order of a directory: the same files give the same
// digests.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Paths in an image. The image runs the tool with the command "install". The "args" of a Kubernetes container replace
// this command.
const (
	tool = "/usr/bin/cni-tool"
	path = "/usr/bin:/opt/cni/bin"
	bill = "usr/share/doc/cni-ipvlan-vpc-k8s/sbom.cdx.json"
)

// A release has the values that are the same in all images.
type release struct {
	version string
	date    time.Time // of all files
}

func main() {
	var r release
	out := flag.String("o", "", "write the layout to `DIR`, which must not exist")
	date := flag.Int64("date", 0, "give all files this date, in `SECONDS` since 1970")
	flag.StringVar(&r.version, "version", "", "the release")
	flag.Parse()
	r.date = time.Unix(*date, 0).UTC()
	if err := r.write(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image: error:", err)
		os.Exit(1)
	}
}

// write writes the layout into dir. Each of roots has the form ARCH=ROOT. ARCH is Go's name of an architecture.
func (r release) write(dir string, roots []string) error {
	if dir == "" || r.version == "" || len(roots) == 0 {
		return errors.New("want -o, -version, and ARCH=ROOT for each architecture")
	}
	if _, err := os.Stat(dir); err == nil {
		return fmt.Errorf("%s is there already: remove it", dir)
	}
	var images, bills []mutate.IndexAddendum
	for _, arg := range roots {
		arch, root, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want ARCH=ROOT", arg)
		}
		image, err := r.image(arch, root)
		if err != nil {
			return err
		}
		bill, err := r.bill(image.Add.(v1.Image), filepath.Join(root, bill))
		if err != nil {
			return err
		}
		images, bills = append(images, image), append(bills, bill)
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		append(images, bills...)...)
	index = mutate.Annotations(index, r.annotations()).(v1.ImageIndex)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return l.AppendIndex(index,
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.version}))
}

// annotations returns annotations that the OCI image specification defines ("Annotations").
func (r release) annotations() map[string]string {
	const source = "https://github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"
	return map[string]string{
		"org.opencontainers.image.title":       "cni-ipvlan-vpc-k8s",
		"org.opencontainers.image.description": "Installs CNI plugins that give pods native addresses of an AWS VPC",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      source,
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.created":     r.date.Format(time.RFC3339),
	}
}

// image returns the image of an architecture.
func (r release) image(arch, root string) (added mutate.IndexAddendum, err error) {
	layer, err := r.layer(root)
	if err != nil {
		return added, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: r.date}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: created, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: []string{tool}, Cmd: []string{"install"}, Env: []string{"PATH=" + path},
			Labels: r.annotations()},
	})
	if err == nil {
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer,
			History: v1.History{Created: created, CreatedBy: "make image"}})
	}
	platform := v1.Platform{OS: "linux", Architecture: arch}
	if arch == "arm64" {
		platform.Variant = "v8"
	}
	return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}}, err
}
