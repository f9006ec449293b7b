// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

// pauseImage is the image of sandboxes. imageHost is the image's registry, which runs on the node itself.
const (
	imageHost  = "127.0.0.1:5000"
	pauseImage = imageHost + "/pause:latest"
)

// An image is a container image with one layer. files has the contents of files, and links has the targets of symbolic
// links, both by path.
type image struct {
	files, links map[string]string
	entrypoint   []string
}

func pauseOf(program []byte) image {
	return image{files: map[string]string{"main": string(program)}, entrypoint: []string{"/main"}}
}

// serveImages serves images by the names of their repositories.
func (s *server) serveImages(t *testing.T, images map[string]image) {
	t.Helper()
	var l net.Listener
	err := s.node.Do(func() (err error) {
		l, err = net.Listen("tcp", imageHost)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/{$}", func(http.ResponseWriter, *http.Request) {})
	for repository, i := range images {
		i.serve(mux, "/v2/"+repository)
	}
	go http.Serve(l, mux) // until the listener is closed
}

// serve serves an image as an OCI registry does. The argument "at" is the path of the image. Every tag leads to the
// image (OCI distribution specification, "Pull").
func (i image) serve(mux *http.ServeMux, at string) {
	i.each(func(kind, digest string, content []byte) {
		name := "blobs/sha256:" + digest
		if kind == manifest {
			name = "manifests/{reference}"
		}
		mux.HandleFunc(at+"/"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", mediaType+kind)
			w.Header().Set("Docker-Content-Digest", "sha256:"+digest)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		})
	})
}

// write writes an image to a directory, as the transport "dir:" of containers-transports(5) reads it.
func (i image) write(t *testing.T, dir string) {
	t.Helper()
	put := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put("version", []byte("Directory Transport Version: 1.1\n"))
	i.each(func(kind, digest string, content []byte) {
		if kind == manifest {
			digest = "manifest.json"
		}
		put(digest, content)
	})
}

const (
	mediaType = "application/vnd.oci.image."
	manifest  = "manifest.v1+json"
)

// each calls the function do for the layer, for the configuration and for the manifest of an image.
func (i image) each(do func(kind, digest string, content []byte)) {
	// put returns the content's descriptor (OCI image specification, "Content Descriptors").
	put := func(kind string, content []byte) object {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		do(kind, digest, content)
		return object{"mediaType": mediaType + kind, "digest": "sha256:" + digest, "size": len(content)}
	}
	layer := put("layer.v1.tar", i.layer())
	config := put("config.v1+json", must(json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": i.entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})))
	put(manifest, must(json.Marshal(object{
		"schemaVersion": 2, "mediaType": mediaType + manifest, "config": config, "layers": []any{layer},
	})))
}

// layer returns an archive of the files and links.
func (i image) layer() []byte {
	var b bytes.Buffer
	a := tar.NewWriter(&b)
	put := func(h *tar.Header, content string) {
		h.Mode, h.Size = 0o755, int64(len(content))
		if err := a.WriteHeader(h); err != nil {
			panic(err) // writing to a buffer cannot fail
		}
		must(a.Write([]byte(content)))
	}
	for _, name := range slices.Sorted(maps.Keys(i.files)) {
		put(&tar.Header{Name: name}, i.files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(i.links)) {
		put(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: i.links[name]}, "")
	}
	if err := a.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}
