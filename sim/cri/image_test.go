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
	"runtime"
	"slices"
	"testing"
	"time"
)

// pauseImage is the name of the image of sandboxes. imageHost is its registry: the node itself.
const (
	imageHost  = "127.0.0.1:5000"
	pauseImage = imageHost + "/pause:latest"
)

// An image has one layer, with files by their names, and links to one of them by theirs.
type image struct {
	files, links map[string]string
	entrypoint   []string
}

// pauseOf is the image of sandboxes, which consists of one program.
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

// serve serves an image as an OCI registry (OCI distribution specification, "Pull"), whatever its tag.
func (i image) serve(mux *http.ServeMux, at string) {
	layer := serveBlob(mux, at, "layer.v1.tar", i.layer())
	config := serveBlob(mux, at, "config.v1+json", must(json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": i.entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})))
	serveBlob(mux, at, "manifest.v1+json", must(json.Marshal(object{
		"schemaVersion": 2, "mediaType": mediaType + "manifest.v1+json", "config": config, "layers": []any{layer},
	})))
}

const mediaType = "application/vnd.oci.image."

// serveBlob serves content by its digest, and by any tag if it is the manifest. It returns the content's descriptor
// (OCI image specification, "Content Descriptors").
func serveBlob(mux *http.ServeMux, at, kind string, content []byte) object {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	name := "blobs/" + digest
	if kind == "manifest.v1+json" {
		name = "manifests/{reference}"
	}
	mux.HandleFunc(at+"/"+name, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaType+kind)
		w.Header().Set("Docker-Content-Digest", digest)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
	return object{"mediaType": mediaType + kind, "digest": digest, "size": len(content)}
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
