// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer returns a layer with the files below the directory root. All files in the layer belong to the user with the ID
// 0, and have the release's date.
func (r release) layer(root string) (v1.Layer, error) {
	var b bytes.Buffer
	a := tar.NewWriter(&b)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error { // in lexical order
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return r.add(a, name, path, d)
	})
	if err == nil {
		err = a.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("layer of %s: %w", root, err)
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	},
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression),
		tarball.WithCompressedCaching)
}

// add writes a file, a directory or a symbolic link to the archive.
func (r release) add(a *tar.Writer, name, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(mode(info)), ModTime: r.date,
		Format: tar.FormatUSTAR}
	switch {
	case d.IsDir():
		h.Name, h.Typeflag = name+"/", tar.TypeDir
	case d.Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
	case d.Type().IsRegular():
		h.Size = info.Size()
	default:
		return fmt.Errorf("%s is neither a file, nor a directory, nor a symbolic link", path)
	}
	if err := a.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(a, f)
	return err
}

// mode returns 755 for programs and directories, and 644 for all other files. The umask of the machine that builds the
// image has no effect.
func mode(info fs.FileInfo) fs.FileMode {
	if info.IsDir() || info.Mode()&0o111 != 0 {
		return 0o755
	}
	return 0o644
}
