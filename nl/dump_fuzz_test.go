// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzDump reads any bytes as messages of a dump. The kernel writes these messages, but a pod with CAP_NET_ADMIN
// decides much of their content for its own namespace. Each reader must return.
func FuzzDump(f *testing.F) {
	rule := slices.Concat(attrString(unix.NFTA_RULE_CHAIN, "forward"),
		attr(unix.NFTA_RULE_USERDATA, encodeComment("0123456789abcdef")))
	f.Add([]byte(rule))
	f.Add([]byte(slices.Concat(attrString(unix.NFTA_CHAIN_NAME, "forward"), attrString(unix.NFTA_CHAIN_TYPE, "filter"),
		nested(unix.NFTA_CHAIN_HOOK, attr32(unix.NFTA_HOOK_HOOKNUM, 1<<24)), attr32(unix.NFTA_CHAIN_POLICY, 0))))
	var x transaction
	x.addRule("forward", "0123456789abcdef", []attribute{equal([]byte{1, 2, 3, 4}),
		immediate(unix.NFT_REG_VERDICT, nativeBytes(1))})
	f.Add(x.encodeMessages(1))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for _, value := range attrsOf(b) {
			if n++; len(value) > len(b) {
				t.Fatalf("an attribute of %d bytes in %d", len(value), len(b))
			}
		}
		if n > len(b)/unix.SizeofNlAttr {
			t.Fatalf("%d attributes in %d bytes", n, len(b))
		}
		c, _ := parseChain(unix.NFPROTO_INET, b)
		if !bytes.Contains(b, []byte(c.Name)) || !slices.Contains([]string{"", "drop"}, c.Policy) {
			t.Errorf("the chain %+v", c)
		}
		if text := decodeComment(b); !bytes.Contains(b, []byte(text)) {
			t.Errorf("the comment %q", text)
		}
		for name, data := range expressions(b) {
			if !bytes.Contains(b, []byte(name)) || len(data) > len(b) {
				t.Errorf("the expression %q of %d bytes", name, len(data))
			}
			verdictOf(data)
		}
		countedBy(b)
		dropsAll(b)
		parseTunnel(b)
		const header = 32 // longer than any message's fixed header, which the kernel always sends whole
		if len(b) < header {
			return
		}
		parseFOU(b)
		if l := parseLink(b); !bytes.Contains(b, []byte(l.Name)) || !bytes.Contains(b, []byte(l.Alias)) {
			t.Errorf("the link %+v", l)
		}
		parseRoute(b)
		parseRule(b)
		parseAddr(b)
		_, _, _ = parseNeigh(b)
	})
}
