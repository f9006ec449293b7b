// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSources compares the hash of the sources with the hash that go generate has written. make lint compares the
// programs themselves.
func TestSources(t *testing.T) {
	h := sha256.New()
	files, err := filepath.Glob("src/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(b)
	}
	if hex.EncodeToString(h.Sum(nil)) != sources {
		t.Error("src has changed: run go generate ./nl/bpf")
	}
}

// TestWith: a number goes into both halves of the instruction that loads the number. A map's descriptor goes into the
// first half, with the mark BPF_PSEUDO_MAP_FD.
func TestWith(t *testing.T) {
	p := program{
		code:     []uint64{0x95, 0x0218, 0, 0x0318, 0},
		operands: []operand{{"number", 1, false}, {"map", 3, true}},
	}
	want := []byte{
		0x95, 0, 0, 0, 0, 0, 0, 0,
		0x18, 0x02, 0, 0, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55,
		0x18, 0x13, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // BPF_PSEUDO_MAP_FD << 4
	}
	for range 2 { // the first call must not change p
		got := p.withValues(map[string]uint64{"number": 0x5566778811223344, "map": 7})
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
}

// TestMistakes wants a panic for a value that is missing, unknown or impossible.
func TestMistakes(t *testing.T) {
	four := netip.MustParseAddr("169.254.169.254")
	for name, mistake := range map[string]func(){
		"a number is missing":       func() { countProgram.withValues(nil) },
		"a number too many":         func() { countProgram.withValues(map[string]uint64{"own": 1, "other": 1}) },
		"two addresses of a family": func() { Refuse([]netip.Addr{four, four.Next()}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			mistake()
		}()
	}
}
