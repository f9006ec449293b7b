// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

// TestText checks that the filter keeps messages of ours unchanged, and removes all secrets.
func TestText(t *testing.T) {
	w := newAllowance()
	w.allowWords("checkout-7d9f8c6b5-x2x4z", "net", "vetha1b2c3d4")
	for _, same := range []string{
		"the node's link eth1 has this address, but the address is for pods. The next pod with this address cannot " +
			"be reached",
		"run: ip address del 10.0.1.7/32 dev eth1. Then enable cni-links.service",
		"sysctl -w net.ipv4.conf.all.rp_filter=2", "ip rule add pref 10001 from 10.0.1.6 lookup 10001",
		"run cni-tool registry-gc --free-after=15m, which adds the address to the registry",
		"EC2 refuses AssignPrivateIpAddresses: PrivateIpAddressLimitExceeded on eni-0123456789abcdef0 in us-east-1a",
		"shop/checkout-7d9f8c6b5-x2x4z has this address on eni-00000000000000002, vetha1b2c3d4, 2001:db8:1::5, " +
			"m5.large",
		"request 1b2c3d4e-0000-4111-8222-123456789abc at 2026-11-24T14:03:00Z took 350ms (3 of 5, 40 %)",
		"/etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf", "http://169.254.169.254/latest/meta-data",
	} {
		if got := w.keptText(same); got != same {
			t.Errorf("%q\nbecomes\n%q", same, got)
		}
	}
	for secret, text := range map[string]string{
		"hunter2":          "login with hunter2 failed",
		"correcthorse":     "the password is correcthorse",
		"horsebattery":     "Authorization: Bearer horsebattery",
		"tr0ub4dor":        "https://user:tr0ub4dor@example.com/",
		"plainpass":        "http://user:plainpass@example.com:3128",
		"justwords":        "DB_PASSWORD=justwords",
		"querysecret":      "GET https://example.com/?sig=querysecret",
		"quoted":           `{"token":"quoted"}`,
		"AKIAIOSFODNN7EXA": "key AKIAIOSFODNN7EXA",
		"wJalrXUtnFEMI":    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
		"deadbeefdeadbeef": "deadbeefdeadbeefdeadbeef",
		"tok123":           "--token=tok123",
		"wordtoken":        "--token wordtoken",
		"ghp":              "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
	} {
		if got := w.keptText(text); strings.Contains(got, secret) {
			t.Errorf("%q\nbecomes\n%q", text, got)
		}
	}
}

// noise returns random text of the given size in bytes. Compression does not make it smaller.
func noise(t *testing.T, size int) string {
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// TestSize checks that a bundle has room for the full shares of all sources. A source that is larger than its share is
// cut, and the manifest says so.
func TestSize(t *testing.T) {
	m := Manifest{Format: 1}
	files := map[string][]byte{}
	for _, r := range readings {
		if r.share == 0 {
			continue
		}
		// after compression, base64 text is a little larger than the bytes that it encodes
		text, why, err := fittingJSON(noise(t, r.share*98/100), r.share)
		if err != nil || why != "" || compressedSize(text) < r.share*95/100 {
			t.Fatalf("%s: %d bytes of %d: %q, %v", r.name, compressedSize(text), r.share, why, err)
		}
		files[r.file] = text
		m.Sources = append(m.Sources, Source{Name: r.name, File: r.file, State: Cut, Why: strings.Repeat("why ", 1000)})
	}
	var n counter
	if err := writeArchive(&n, m, files); err != nil || int(n) > MostBytes {
		t.Errorf("the bundle has %d bytes of %d: %v", n, MostBytes, err)
	}
	l := &list[string]{keepsEnd: true}
	for range 40 {
		l.items = append(l.items, noise(t, 100))
	}
	all, _ := l.MarshalJSON()
	want := fmt.Sprintf("the compressed data of the source has %d bytes, but its share of the bundle is 2000 bytes",
		compressedSize(all))
	text, why, err := fittingJSON(l, 2000)
	if err != nil || why != want || compressedSize(text) > 2000 ||
		!strings.Contains(string(text), l.items[len(l.items)-1]) {
		t.Errorf("a list has %d bytes of 2000: %q, %v", compressedSize(text), why, err)
	}
	if _, _, err := fittingJSON(noise(t, 1000), 500); err == nil {
		t.Error("what cannot be cut has room")
	}
}

// TestKernelFirst checks that a bundle reads the kernel before the registry. A pod may start between the two readings.
// So the registry has a lease for each veth that the bundle has found in the kernel.
func TestKernelFirst(t *testing.T) {
	at := func(name string) int {
		return slices.IndexFunc(readings, func(r reading) bool { return r.name == name })
	}
	if at(sourceKernel) > at(sourceRegistry) {
		t.Errorf("the kernel is reading %d, the registry is reading %d", at(sourceKernel), at(sourceRegistry))
	}
}

// TestCut checks that fittingJSON cuts the registry and the kernel's state to the given size. A check must notice that
// the routes were cut.
func TestCut(t *testing.T) {
	s := &registry.State{}
	for a := netip.MustParseAddr("10.0.0.1"); a.Less(netip.MustParseAddr("10.0.3.0")); a = a.Next() {
		if a.As4()[3]%2 == 0 {
			s.Free.Set(a, time.Now())
		} else {
			s.Leases.Set(a, registry.Lease{Key: registry.Key{Network: noise(t, 100)}})
		}
	}
	shot := &doctor.Snapshot{Lacks: map[string]string{}}
	for range 1000 {
		shot.Route = append(shot.Route, nl.Route{Dev: noise(t, 30)})
	}
	for _, v := range []cutter{&registryFile{s.Known()}, shot} {
		text, why, err := fittingJSON(v, 20_000)
		if err != nil || why == "" || len(text) == 0 {
			t.Errorf("%T: %d bytes, %q, %v", v, len(text), why, err)
		}
	}
	if _, err := shot.Routes(nl.RouteFilter{}); err == nil {
		t.Error("a check takes a part of the routes for all of them")
	}
}

// TestWithin checks that callWithin returns an error for a reading that hangs.
func TestWithin(t *testing.T) {
	began := time.Now()
	_, err := callWithin(t.Context(), 10*time.Millisecond, func(context.Context) (int, error) { select {} })
	if err == nil || time.Since(began) > time.Minute {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// TestReadDamaged checks that a damaged bundle causes an error and no panic.
func TestReadDamaged(t *testing.T) {
	var whole bytes.Buffer
	text, err := json.Marshal([]Entry{{Text: "x"}})
	if err == nil {
		err = writeArchive(&whole, Manifest{Format: 1, Sources: []Source{{Name: "journal", File: "journal.json"}}},
			map[string][]byte{"journal.json": text})
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Read(bytes.NewReader(whole.Bytes())); err != nil || len(b.Journal) != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	for _, n := range []int{0, 1, 20, whole.Len() / 2} {
		if _, err := Read(io.LimitReader(bytes.NewReader(whole.Bytes()), int64(n))); !errors.Is(err, ErrNone) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	var later bytes.Buffer
	if err := writeArchive(&later, Manifest{Format: 2, Tool: "v9"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(&later); err == nil || !strings.Contains(err.Error(), "v9") {
		t.Errorf("of a later release: %v", err)
	}
}
