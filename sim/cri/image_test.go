// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"
)

// pauseImage is the name of the image of sandboxes. imageHost is its registry: the node itself.
const (
	imageHost  = "127.0.0.1:5000"
	pauseImage = imageHost + "/pause:latest"
)

// serveImage serves the image of sandboxes, which consists of one program.
func (s *server) serveImage(t *testing.T, program []byte) {
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
	go http.Serve(l, imageHandler(program)) // until the listener is closed
}

// imageHandler is an OCI registry with one image (OCI distribution specification, "Pull").
func imageHandler(program []byte) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/{$}", func(http.ResponseWriter, *http.Request) {})
	layer := serveBlob(mux, "layer.v1.tar", tarOf(program))
	config := serveBlob(mux, "config.v1+json", must(json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{"/main"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})))
	serveBlob(mux, "manifest.v1+json", must(json.Marshal(object{
		"schemaVersion": 2, "mediaType": mediaType + "manifest.v1+json", "config": config, "layers": []any{layer},
	})))
	return mux
}

const mediaType = "application/vnd.oci.image."

// serveBlob serves content by its digest, and by the tag if it is the manifest. It returns the content's descriptor
// (OCI image specification, "Content Descriptors").
func serveBlob(mux *http.ServeMux, kind string, content []byte) object {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	names := []string{"blobs/" + digest}
	if kind == "manifest.v1+json" {
		names = []string{"manifests/latest", "manifests/" + digest}
	}
	for _, name := range names {
		mux.HandleFunc("/v2/pause/"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", mediaType+kind)
			w.Header().Set("Docker-Content-Digest", digest)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		})
	}
	return object{"mediaType": mediaType + kind, "digest": digest, "size": len(content)}
}

// tarOf returns an archive with the program.
func tarOf(program []byte) []byte {
	var b bytes.Buffer
	a := tar.NewWriter(&b)
	if err := a.WriteHeader(&tar.Header{Name: "main", Mode: 0o755, Size: int64(len(program))}); err != nil {
		panic(err) // writing to a buffer cannot fail
	}
	must(a.Write(program))
	if err := a.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}
