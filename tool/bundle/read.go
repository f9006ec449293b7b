// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// Limits for the files in an archive, so that the archive of an attacker cannot fill the memory.
const (
	mostFile  = 64 << 20
	mostFiles = 256 << 20
	mostNames = 100
)

// ErrNone means that a file is no bundle.
var ErrNone = errors.New("the file is no support bundle")

// Read reads a bundle. If the file of a source is damaged, Read returns an error and the data of the other sources. If
// the archive or its manifest is damaged, Read returns only an error. The function Read opens no file and writes no
// file.
func Read(r io.Reader) (*Bundle, error) {
	files, err := unpack(r)
	if err != nil {
		return nil, err
	}
	b := &Bundle{}
	if err := decode(files, manifestFile, &b.Manifest); err != nil {
		return nil, err
	}
	if b.Format != 1 {
		return nil, fmt.Errorf("the bundle has the format %d, but this release reads only the format 1: use the "+
			"release %s, which made the bundle",
			b.Format, b.Tool)
	}
	var failed error
	optional := func(name string, to any) {
		if _, has := files[name]; has {
			failed = errors.Join(failed, decode(files, name, to))
		}
	}
	var found examination
	var networks []network
	optional("conflists.json", &networks)
	optional("leaselog.json", &b.Log)
	optional("kernel.json", &b.Kernel)
	optional("cloud.json", &b.Cloud)
	optional("doctor.json", &found)
	optional("observed.json", &b.Observed)
	optional("pods.json", &b.Pods)
	optional("journal.json", &b.Journal)
	optional("versions.json", &b.Versions)
	if text, has := files["registry.json"]; has {
		if b.State, err = registry.Parse(text); err != nil {
			failed = errors.Join(failed, fmt.Errorf("registry.json: %w", err))
		}
	}
	if files["doctor.json"] != nil {
		b.Findings, b.Unmade = &found.Report, found.Unmade
	}
	for _, n := range networks {
		l, err := conf.Cached(n.File, n.List)
		failed = errors.Join(failed, err)
		b.Networks = append(b.Networks, l)
	}
	b.Conflists = conf.Recorded("the bundle", b.Networks)
	if b.Observed != nil {
		if b.Observed.State = b.State; b.State == nil {
			b.Observed = nil
		}
	}
	return b, failed
}

// unpack returns the files of the archive. The keys of the map are the names of the files.
func unpack(r io.Reader) (map[string][]byte, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	files, left := map[string][]byte{}, int64(mostFiles)
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return files, nil
		case err != nil:
			return nil, fmt.Errorf("%w, or a part of the file is missing: %w", ErrNone, err)
		case h.Size > mostFile || h.Size > left || len(files) == mostNames:
			return nil, fmt.Errorf("%w: the file is larger than any bundle", ErrNone)
		}
		text, err := io.ReadAll(io.LimitReader(t, mostFile))
		if err != nil {
			return nil, fmt.Errorf("%w, or a part of the file is missing: %w", ErrNone, err)
		}
		left -= int64(len(text))
		if strings.HasPrefix(h.Name, "support-bundle/") {
			files[path.Base(h.Name)] = text
		}
	}
}

func decode(files map[string][]byte, name string, to any) error {
	text, has := files[name]
	if !has {
		return fmt.Errorf("%w: the file has no %s", ErrNone, name)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
