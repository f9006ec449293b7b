// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package page

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

// hostile is a text that an attacker could choose as a name.
const hostile = `"'><script>alert(1)</script><img src=http://evil.test/x onerror=alert(2)><style>*{}</style>` + "</svg>{{.}}"

// hostileBundle returns a bundle with the text hostile in each field that the page shows.
func hostileBundle() *bundle.Bundle {
	a, now := netip.MustParseAddr("10.0.1.5"), time.Now()
	s := &registry.State{ENIs: map[string]registry.ENI{"eni-" + hostile: {MAC: hostile, Link: hostile, Index: 1,
		Subnet: hostile, Addrs: []netip.Addr{a, a.Next()}, Pool: hostile, Serving: true}},
		Refusals: map[string]registry.Refusal{hostile: {Code: hostile, Message: hostile, Since: now.Add(-time.Hour)}},
		Failures: map[string]registry.Failure{hostile: {Text: hostile, Since: now}}}
	s.Instance.ID, s.Instance.Type, s.Instance.Zone, s.Instance.ENIs = hostile, hostile, hostile, 3
	key := registry.Key{Network: hostile, Attachment: registry.Attachment{ContainerID: hostile, IfName: hostile}}
	s.Leases.Set(a, registry.Lease{Key: key, PodNamespace: hostile, PodName: hostile, ENI: "eni-" + hostile,
		NetNS: hostile, Bound: true})
	line := registry.Line{Time: now, Event: registry.Begin, Address: a, Pod: hostile, Namespace: hostile, ENI: hostile}
	return &bundle.Bundle{Manifest: bundle.Manifest{Made: now, Tool: hostile,
		Sources: []bundle.Source{{Name: hostile, State: hostile, Why: hostile, File: hostile, Took: hostile}}},
		State: s, Log: []registry.Line{line}, Conflists: conf.Recorded(hostile, nil),
		Kernel: &doctor.Snapshot{Link: []nl.Link{{Name: hostile, Alias: hostile}}, Lacks: map[string]string{}},
		Pods: []bundle.PodObjects{{NetNS: hostile, Links: []nl.Link{{Name: hostile, Alias: hostile}},
			Why: hostile}},
		Journal:  []bundle.Entry{{Unit: hostile, Program: hostile, Text: hostile}},
		Versions: map[string]string{hostile: hostile},
		Findings: &doctor.Report{Findings: []doctor.Finding{{Check: hostile, Severity: "error", About: hostile,
			Means: hostile, Do: hostile}}},
		Unmade: []doctor.Unmade{{Check: hostile, Why: hostile}}}
}

// tags matches a text that a browser reads as the start tag of an element, with its attributes.
var tags = regexp.MustCompile(`<([a-z][a-z0-9]*)((?:\s+[a-zA-Z:-]+(?:="[^"]*")?)*)\s*/?>`)

// TestHostile checks that hostile text stays text on the page. The text must create no element, no attribute and no
// request.
func TestHostile(t *testing.T) {
	b := hostileBundle()
	var out strings.Builder
	if err := Write(&out, b, ReviewOf(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	html := out.String()
	if n := strings.Count(html, "alert(1)"); n < 20 {
		t.Errorf("the page shows the hostile text %d times", n)
	}
	for _, never := range []string{"<script", "<img", "<style>*", "onerror=alert(2)>"} {
		if strings.Contains(html, never) {
			t.Errorf("the page has %q", never)
		}
	}
	if n := strings.Count(html, "<style>"); n != 1 {
		t.Errorf("the page has %d styles", n)
	}
	if n := strings.Count(html, "</svg>"); n > 1 {
		t.Errorf("the page ends %d pictures", n)
	}
	for _, m := range tags.FindAllStringSubmatch(html, -1) {
		for _, never := range []string{" on", " src=", " srcset=", " formaction="} {
			if strings.Contains(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(m[2], ""), never) {
				t.Errorf("the element %s has the attributes %s", m[1], m[2])
			}
		}
		if m[1] == "a" && !strings.Contains(m[2], `href="#`) {
			t.Errorf("a link leads out of the page: %s", m[0])
		}
		if m[1] == "link" || m[1] == "iframe" || m[1] == "object" || m[1] == "base" {
			t.Errorf("the page has the element %s", m[0])
		}
	}
	if strings.Contains(html, "url(") || strings.Contains(html, "@import") {
		t.Error("the style asks for another file")
	}
}

// TestLinks checks that each link of the page leads to a part of the page, and that no two parts have the same ID.
func TestLinks(t *testing.T) {
	b := hostileBundle()
	var out strings.Builder
	if err := Write(&out, b, ReviewOf(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	ids := map[string]int{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(out.String(), -1) {
		ids[m[1]]++
	}
	for id, n := range ids {
		if n != 1 {
			t.Errorf("%d parts have the name %q", n, id)
		}
	}
	to := regexp.MustCompile(`(?:href="#|aria-labelledby=")([^"]*)"`)
	for _, m := range to.FindAllStringSubmatch(out.String(), -1) {
		if ids[m[1]] == 0 {
			t.Errorf("no part has the name %q", m[1])
		}
	}
}

// TestEmpty checks that there is a page for a bundle whose sources could not be read.
func TestEmpty(t *testing.T) {
	b := &bundle.Bundle{Conflists: conf.Recorded("", nil), Manifest: bundle.Manifest{Sources: []bundle.Source{
		{Name: "registry", State: bundle.Unread, Why: "read-only file system"}}}}
	var out strings.Builder
	if err := Write(&out, b, ReviewOf(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not checked", "read-only file system", "could not be read"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
