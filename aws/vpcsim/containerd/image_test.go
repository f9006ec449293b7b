// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package containerd_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
)

// pauseImage is the name of the image of sandboxes, in the form that needs no completion.
const pauseImage = "localhost/pause:latest"

// An archive is a tar file in memory.
type archive struct {
	bytes.Buffer
	*tar.Writer
}

func newArchive() *archive {
	a := &archive{}
	a.Writer = tar.NewWriter(&a.Buffer)
	return a
}

func (a *archive) add(name string, content []byte) {
	if err := a.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		panic(err) // a buffer takes all
	}
	must(a.Writer.Write(content))
}

func (a *archive) bytes() []byte {
	if err := a.Writer.Close(); err != nil {
		panic(err)
	}
	return a.Buffer.Bytes()
}

// blob adds content by its digest, and describes it (OCI image specification, "Content Descriptors").
func (a *archive) blob(kind string, content []byte) object {
	digest := fmt.Sprintf("%x", sha256.Sum256(content))
	a.add("blobs/sha256/"+digest, content)
	return object{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": len(content)}
}

// ociArchive is an image with one program and nothing else, as an archive of an OCI image layout.
func ociArchive(name string, program []byte) []byte {
	files := newArchive()
	files.add("main", program)
	a := newArchive()
	layer := a.blob("layer.v1.tar", files.bytes())
	config := a.blob("config.v1+json", must(json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{"/main"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	})))
	manifest := a.blob("manifest.v1+json", must(json.Marshal(object{"schemaVersion": 2, "config": config, "layers": []any{layer}})))
	manifest["annotations"] = object{"io.containerd.image.name": name}
	a.add("index.json", must(json.Marshal(object{"schemaVersion": 2, "manifests": []any{manifest}})))
	a.add("oci-layout", []byte(`{"imageLayoutVersion": "1.0.0"}`))
	return a.bytes()
}
