// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestKnown: the copy that Known returns must have only members that this release knows. This includes the members of
// ENIs and of leases. Times from another machine must not be changed.
func TestKnown(t *testing.T) {
	const since = "2020-01-02T03:04:05Z"
	text := `{"schema_version":1,"ips":{"10.0.0.9":{"released_on":"` + since + `","later":"secret"}},` +
		`"leases":{"10.0.0.8":{"network":"net","containerID":"c1","ifname":"eth0","podName":"web","eni":"eni-1",` +
		`"annotations":{"token":"secret"},"since":"` + since + `"}},` +
		`"enis":{"eni-1":{"mac":"02:00:00:00:00:01","index":1,"subnet":"subnet-1","vpc":"vpc-1",` +
		`"addrs":["10.0.0.8","10.0.0.9"],"read":"` + since + `","password":"secret"}},` +
		`"vpcs":{},"instance":{},"booted":"` + since + `","later":{"key":"secret"}}`
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	known, err := s.Known().Text()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(known), "secret") {
		t.Errorf("the copy has what this release does not know:\n%s", known)
	}
	again, err := Parse(known)
	if err != nil {
		t.Fatal(err)
	}
	l, leased := again.Leases.At(netip.MustParseAddr("10.0.0.8"))
	freed, free := again.Free.At(netip.MustParseAddr("10.0.0.9"))
	want, _ := time.Parse(time.RFC3339, since)
	if !leased || l.PodName != "web" || !l.Since.Equal(want) || !free || !freed.Equal(want) || len(again.ENIs) != 1 {
		t.Errorf("the copy is\n%s", known)
	}
}

// TestParseEdited: a text that does not come from the registry's file may have been edited, so its indexes must not be
// used.
func TestParseEdited(t *testing.T) {
	const few = 9
	s := newState()
	if err := s.Reserve(fill(s, few), lease("c1")); err != nil {
		t.Fatal(err)
	}
	e := s.ENIs["eni-1"]
	for i := range few {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i), 16}), 28)
		e.Prefixes = append(e.Prefixes, Prefix{block, time.Unix(1, 0).UTC()})
	}
	s.ENIs["eni-1"] = e
	text, err := s.Text()
	if err != nil || !bytes.HasSuffix(text, sealText(time.Time{})) || !bytes.Contains(text, []byte("prefixesIndex")) {
		t.Fatalf("%v: %s", err, text)
	}
	edited, err := Parse(bytes.ReplaceAll(text, []byte(`"10.9.3.16/28"`), []byte(`"10.8.7.16/28"`)))
	if err != nil {
		t.Fatal(err)
	}
	if got := edited.ENIs["eni-1"].Prefixes[3].CIDR; got != netip.MustParsePrefix("10.8.7.16/28") || edited.isOurs {
		t.Errorf("the prefix is %s, it is ours: %v", got, edited.isOurs)
	}
}
