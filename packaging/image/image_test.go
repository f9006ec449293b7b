// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var test = release{version: "v1.2.3", date: time.Unix(1700000000, 0).UTC()}

// root writes the files of an image. Each file contains the name of the architecture.
func root(t *testing.T, arch string, umask os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string]string{"usr/bin/cni-ipvlan-vpc-k8s-tool": arch, "opt/cni/bin/p": arch,
		bill: `{"bomFormat": "CycloneDX", "version": 1, "arch": "` + arch + `"}`} {
		mode := os.FileMode(0o666)
		if strings.Contains(path, "bin/") {
			mode = 0o777
		}
		file := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777&^umask), os.WriteFile(file, []byte(text), mode),
			os.Chmod(file, mode&^umask)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("cni-ipvlan-vpc-k8s-tool", filepath.Join(dir, "usr/bin/cni-tool")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// index writes a layout, and returns the index of its images.
func index(t *testing.T, umask os.FileMode) v1.ImageIndex {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	if err := test.write(dir, []string{"amd64=" + root(t, "amd64", umask), "arm64=" +
		root(t, "arm64", umask)}); err != nil {
		t.Fatal(err)
	}
	whole, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	// If an index has several entries, the push commands of some tools do not know which entry to push.
	m, err := whole.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatal(m, err)
	}
	if got := m.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != test.version {
		t.Errorf("the name is %q", got)
	}
	images, err := whole.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// TestReproducible checks that the digest depends only on the files, and not on the umask or the time.
func TestReproducible(t *testing.T) {
	one, err1 := index(t, 0o022).Digest()
	two, err2 := index(t, 0o077).Digest()
	if err1 != nil || err2 != nil || one != two {
		t.Errorf("two digests of the same files: %v %v, %v %v", one, two, err1, err2)
	}
}

// TestPush pushes the index to a registry. Then it pulls the image and the bill of materials of each architecture.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/cni:" + test.version)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index(t, 0o022)); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c := config.Config
		if config.Architecture != arch || config.OS != "linux" || !slices.Equal(append(c.Entrypoint, c.Cmd...),
			[]string{"/usr/bin/cni-tool", "install"}) {
			t.Errorf("%s: %+v", arch, config)
		}
		files(t, image, arch)
		referrer(t, ref, image, arch)
	}
}

// files checks the files of an image.
func files(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	got := map[string]string{}
	for a := tar.NewReader(content); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(test.date) || h.Mode&0o022 != 0 ||
			h.Mode&0o444 != 0o444 && h.Typeflag == tar.TypeReg {
			t.Errorf("%s: %+v", h.Name, h)
		}
		got[h.Name] = string(text) + h.Linkname
	}
	if got["opt/cni/bin/p"] != arch || got["usr/bin/cni-tool"] != "cni-ipvlan-vpc-k8s-tool" {
		t.Errorf("%s: %q", arch, got)
	}
}

// referrer checks that the registry lists the bill of materials as a referrer of the image.
func referrer(t *testing.T, ref name.Reference, image v1.Image, arch string) {
	t.Helper()
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	list, err := remote.Referrers(ref.Context().Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	m, err := list.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("referrers of %s: %+v, %v", digest, m, err)
	}
	bill, err := remote.Image(ref.Context().Digest(m.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	if own, err := bill.Manifest(); err != nil || own.ArtifactType != cycloneDX || own.Subject.Digest != digest {
		t.Errorf("the manifest of the bill: %+v, %v", own, err)
	}
	layers, err := bill.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(layers, err)
	}
	blob, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	if text, err := io.ReadAll(blob); err != nil || !bytes.Contains(text, []byte(`"arch": "`+arch+`"`)) {
		t.Errorf("the bill of %s: %s, %v", arch, text, err)
	}
}

// TestBadInput checks bad inputs. The error must name the problem, and no layout may be written.
func TestBadInput(t *testing.T) {
	good := root(t, "amd64", 0o022)
	noBill, badBill, device := root(t, "amd64", 0o022), root(t, "amd64", 0o022), root(t, "amd64", 0o022)
	socket := filepath.Join(device, "socket")
	if err := errors.Join(os.Remove(filepath.Join(noBill, bill)), os.WriteFile(filepath.Join(badBill, bill), nil,
		0o644), syscall.Mkfifo(socket, 0o600)); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"ARCH=ROOT for each":       nil,
		`"amd64": want ARCH=ROOT`:  {"amd64"},
		"no such file":             {"amd64=" + filepath.Join(good, "none")},
		"sbom.cdx.json: no such":   {"amd64=" + noBill},
		"sbom.cdx.json is no JSON": {"amd64=" + badBill},
		socket + " is neither":     {"amd64=" + device},
	} {
		dir := filepath.Join(t.TempDir(), "layout")
		if err := test.write(dir, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%v: there is a layout", args)
		}
	}
	if err := test.write(good, []string{"amd64=" + good}); err == nil ||
		!strings.Contains(err.Error(), "is there already") {
		t.Errorf("a layout that is there: %v", err)
	}
}
