// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A keyPair is the public key of a key pair for SSH.
type keyPair struct {
	id, name, material string // the material is a line of authorized_keys
	tags               map[string]string
}

// keyPairItem is a key pair on the wire (API: KeyPairInfo).
type keyPairItem struct {
	ID          string   `xml:"keyPairId"`
	Fingerprint string   `xml:"keyFingerprint"`
	Name        string   `xml:"keyName"`
	Type        string   `xml:"keyType,omitempty"`
	Tags        set[tag] `xml:"tagSet"`
}

type importKeyPairInput struct {
	Name              string             `ec2:"KeyName,required"`
	Material          string             `ec2:"PublicKeyMaterial,required"`
	TagSpecifications []tagSpecification `ec2:"TagSpecification"`
}

type importKeyPairOutput struct {
	head
	keyPairItem
}

// importKeyPair keeps a public key (API: ImportKeyPair).
func (s *Sim) importKeyPair(in *importKeyPairInput) (*importKeyPairOutput, error) {
	if _, ok := s.keys[in.Name]; ok {
		return nil, refuse("InvalidKeyPair.Duplicate", "The keypair already exists")
	}
	material, err := base64.StdEncoding.DecodeString(in.Material)
	if err != nil || len(strings.Fields(string(material))) < 2 {
		return nil, refuse("InvalidKey.Format", "Key is not in valid OpenSSH public key format")
	}
	tags, err := tagsFor("key-pair", in.TagSpecifications)
	if err != nil {
		return nil, err
	}
	k := &keyPair{fmt.Sprintf("key-%017x", s.nextNumber("key")), in.Name, strings.TrimSpace(string(material)), tags}
	s.keys[in.Name] = k
	item := k.item()
	item.Type = "" // only DescribeKeyPairs returns the type of the key
	return &importKeyPairOutput{keyPairItem: item}, nil
}

// item returns a key pair as an answer shows it. The fingerprint is that of an ED25519 key (API: KeyPairInfo,
// keyFingerprint: "base64-encoded SHA-256 digest").
func (k *keyPair) item() keyPairItem {
	blob, _ := base64.StdEncoding.DecodeString(strings.Fields(k.material)[1])
	sum := sha256.Sum256(blob)
	return keyPairItem{ID: k.id, Fingerprint: base64.StdEncoding.EncodeToString(sum[:]), Name: k.name, Type: "ed25519",
		Tags: tagSet(k.tags)}
}

func (s *Sim) keyPair(name string) (*keyPair, error) {
	if k, ok := s.keys[name]; ok {
		return k, nil
	}
	return nil, refuse("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", name)
}

type describeKeyPairsInput struct {
	Filters []filter `ec2:"Filter"`
	Names   []string `ec2:"KeyName"`
}

type describeKeyPairsOutput struct {
	head
	Keys set[keyPairItem] `xml:"keySet"`
}

// keyCatalogue is the catalogue of key pairs (API: DescribeKeyPairs).
var keyCatalogue = catalogue[*keyPair]{
	id: func(k *keyPair) string { return k.name },
	notFound: func(id string) error {
		return refuse("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", id)
	},
	tags:    func(k *keyPair) map[string]string { return k.tags },
	unpaged: true,
}

func (s *Sim) describeKeyPairs(in *describeKeyPairsInput) (*describeKeyPairsOutput, error) {
	chosen, _, err := keyCatalogue.choosePage(slices.Collect(maps.Values(s.keys)), in.Names, page{Filters: in.Filters})
	if err != nil {
		return nil, err
	}
	out := &describeKeyPairsOutput{}
	for _, k := range chosen {
		out.Keys.Items = append(out.Keys.Items, k.item())
	}
	return out, nil
}

type deleteKeyPairInput struct {
	Name string `ec2:"KeyName,required"`
}

// deleteKeyPair deletes a key pair. It is no error if the key pair does not exist (in practice).
func (s *Sim) deleteKeyPair(in *deleteKeyPairInput) (*emptyOutput, error) {
	delete(s.keys, in.Name)
	return &emptyOutput{Return: true}, nil
}

// KeyPairs returns the names of all key pairs.
func (s *Sim) KeyPairs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.keys))
}
