// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

// Some engines of NetworkPolicy compute the name of a pod's link on the node: aws-network-policy-agent
// (GetHostVethName) and Calico (VethNameForWorkload). With the key vethPrefix, the node's end of a routed pod's pair
// has this name: the engine's name.
//
// The engine's name follows from the pod's name and Kubernetes namespace. So the pairs of two sandboxes of a pod would
// have the same name. For this reason, the pair also has an alternative name, [VethName], which follows from the
// attachment. All commands find, change and delete the pair by the alternative name. A link that has only the engine's
// name may belong to another sandbox, or to another program. The pair's MAC address also follows from the attachment.
// So if another program removes the alternative name, we find the pair by the MAC address, and [Restore] puts the
// alternative name back.

// engineName returns the name by which engines find the pair of a pod. It is "" without a vethPrefix, or if the name of
// the pod is unknown.
func engineName(r *request) string {
	if r.Config.VethPrefix == "" || r.Pod.Name == "" {
		return ""
	}
	const digits = 11
	h := sha1(r.Pod.Namespace + "." + r.Pod.Name)
	return r.Config.VethPrefix + fmt.Sprintf("%08x%08x", h[0], h[1])[:digits]
}

// setName sets the name of the node's end. attachmentName follows from the attachment. If name differs from
// attachmentName, attachmentName becomes the alternative name.
func (p *pair) setName(name, attachmentName string) {
	p.veth.Name, p.veth.AltName = name, ""
	if name != attachmentName {
		p.veth.AltName = attachmentName
	}
}

// explainTaken returns the error of an ADD whose pair could not be made. If another link has the engine's name, the
// error names the owner of that link.
func (s *scene) explainTaken(p pair, failed error) error {
	if p.veth.AltName == "" || !errors.Is(failed, fs.ErrExist) {
		return failed
	}
	near, err := s.nodeNS.LinkByName(p.veth.Name)
	if err != nil || near.MAC == p.veth.MAC {
		return failed
	}
	owner, hint := "a link of another program", "delete or rename this link, or set another vethPrefix"
	const ends = "the DEL of the other container deletes the pair. If the container is gone, a GC deletes the pair"
	if words := strings.Fields(near.Alias); len(words) > 2 && networkInAlias(near.Alias) != "" {
		owner, hint = "the pair of an earlier sandbox (container "+words[2]+")", ends
	} else if isHalfMade(near) {
		owner, hint = "the pair of an unfinished ADD for the same pod", ends
	}
	return plugin.Errorf(plugin.CodeTryAgain, hint+". Then the next ADD succeeds. 'ip -d link show "+near.Name+
		"' shows the link",
		"the veth pair of the pod %s must have the name %s, but %s has this name: this ADD has changed nothing",
		s.Pod, near.Name, owner)
}

// delPair deletes a pair that a failed ADD has made. To delete a pair with an engine's name, delPair deletes the pair's
// end in the pod, because another sandbox may have made a pair with this name meanwhile.
func (s *scene) delPair(p pair) error {
	if p.veth.AltName == "" {
		return s.nodeNS.DelPair(nl.Link{Name: p.veth.Name})
	}
	err := s.podNS.DelGroup(nl.PodGroup(s.Digest()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// delUnnamed deletes the attachment's pair if this pair lacks its alternative name. The ADD was killed before it added
// the alternative name, or another program has removed this name.
func delUnnamed(r *request) error {
	name := engineName(r)
	if name == "" {
		return nil
	}
	l, err := r.nodeNS.LinkByName(name)
	if own, _ := macs(r.Network, r.Attachment); err != nil || l.MAC != own || !nl.IsPair(l.Group) {
		return nil
	}
	return r.nodeNS.DelPair(l)
}

// validatePrefix checks vethPrefix. The kernel allows 15 bytes: four of the prefix, and eleven digits of the hash.
func (c *Config) validatePrefix(m *values.Mistakes) {
	const most = 4
	strange := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	switch p := c.VethPrefix; {
	case len(p) > most || strings.ContainsFunc(p, strange):
		m.Wrong("vethPrefix: %q: want 1 to %d letters and digits, for example eni", p, most)
	case p == "veth":
		m.Wrong(`vethPrefix: "veth": want another prefix, for example eni, because the names of all other pairs ` +
			"begin with veth")
	case slices.Contains([]string{"lo", "eth", "ens", "vlan"}, p):
		m.Wrong("vethPrefix: %q: want another prefix, for example eni. Other links of nodes have names with this "+
			"prefix, and an engine of NetworkPolicy would take these links for pods", p)
	}
}

// sha1 returns the SHA-1 of a text (FIPS 180-4), as five numbers of 32 bits. The package crypto/sha1 and its imports
// would be a twentieth of the program, and each process would have to initialize these packages.
func sha1(text string) [5]uint32 {
	const block = 64
	h := [5]uint32{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}
	m := append([]byte(text), 0x80)
	for len(m)%block != block-8 {
		m = append(m, 0)
	}
	m = binary.BigEndian.AppendUint64(m, uint64(len(text))*8)
	for ; len(m) > 0; m = m[block:] {
		hashBlock(&h, m)
	}
	return h
}

func hashBlock(h *[5]uint32, block []byte) {
	var w [80]uint32
	for i := range w {
		if i < 16 {
			w[i] = binary.BigEndian.Uint32(block[4*i:])
		} else {
			w[i] = bits.RotateLeft32(w[i-3]^w[i-8]^w[i-14]^w[i-16], 1)
		}
	}
	a, b, c, d, e := h[0], h[1], h[2], h[3], h[4]
	for i, x := range w {
		f, k := b^c^d, [4]uint32{0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6}[i/20]
		switch i / 20 {
		case 0:
			f = b&c | ^b&d
		case 2:
			f = b&c | b&d | c&d
		}
		a, b, c, d, e = bits.RotateLeft32(a, 5)+f+e+k+x, a, bits.RotateLeft32(b, 30), c, d
	}
	for i, x := range [5]uint32{a, b, c, d, e} {
		h[i] += x
	}
}
