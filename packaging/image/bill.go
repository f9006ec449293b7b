// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// cycloneDX is the media type of the software bill of materials (short: the bill), and of the bill's artifact
// (https://www.iana.org/assignments/media-types).
const cycloneDX = "application/vnd.cyclonedx+json"

// An artifact is a manifest with one blob and without a configuration (OCI image specification 1.1, "Guidelines for
// Artifact Usage").
type artifact struct {
	manifest []byte
	blob     v1.Layer
}

// The content of the empty descriptor, and its media type.
const (
	noConfig     = "{}"
	noConfigType = types.MediaType("application/vnd.oci.empty.v1+json")
)

// bill returns an entry for the index: the artifact with the bill of an image.
func (r release) bill(image v1.Image, file string) (added mutate.IndexAddendum, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return added, err
	}
	if !json.Valid(text) {
		return added, fmt.Errorf("%s is no JSON", file)
	}
	subject, err := partial.Descriptor(image)
	if err != nil {
		return added, err
	}
	a := artifact{blob: static.NewLayer(text, cycloneDX)}
	blob, err := partial.Descriptor(a.blob)
	if err != nil {
		return added, err
	}
	blob.Annotations = map[string]string{"org.opencontainers.image.title": "sbom.cdx.json"}
	config, size, err := v1.SHA256(bytes.NewReader([]byte(noConfig)))
	if err != nil {
		return added, err
	}
	a.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: cycloneDX,
		Config:  v1.Descriptor{MediaType: noConfigType, Digest: config, Size: size, Data: []byte(noConfig)},
		Layers:  []v1.Descriptor{*blob},
		Subject: &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
	})
	if err != nil {
		return added, err
	}
	whole, err := partial.CompressedToImage(a)
	return mutate.IndexAddendum{Add: whole, Descriptor: v1.Descriptor{
		ArtifactType: cycloneDX,
		Platform:     &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{ // https://docs.docker.com/build/metadata/attestations/attestation-storage/
			"vnd.docker.reference.type":   "attestation-manifest",
			"vnd.docker.reference.digest": subject.Digest.String(),
		},
	}}, err
}

// RawManifest returns the manifest.
func (a artifact) RawManifest() ([]byte, error) { return a.manifest, nil }

// RawConfigFile returns the empty configuration.
func (a artifact) RawConfigFile() ([]byte, error) { return []byte(noConfig), nil }

// MediaType is the media type of all manifests.
func (a artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest returns the only blob.
func (a artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if has, err := a.blob.Digest(); err != nil || h != has {
		return nil, fmt.Errorf("there is no blob %s", h)
	}
	return a.blob, nil
}
