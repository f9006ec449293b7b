// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// These fuzz targets answer the calls of a Client with texts from the fuzzer. If the answer is not valid, the Client
// must return an error that names the action.

// replies returns answers of the simulator. The key is the action.
func replies(f *testing.F) map[string]string {
	f.Helper()
	sim, node, _ := launched(f, ec2sim.World(`
		vpc-1    10.0.0.0/16 100.64.0.0/16 2001:db8:1::/56
		subnet-a 10.0.0.0/24 2001:db8:1:1::/64 pods=yes
		pcx-1    vpc-1 vpc-2 10.9.0.0/16`), ec2sim.RunInstance{Type: "p4d.24xlarge", Subnet: "subnet-a"})
	all := map[string]string{}
	c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := httptest.NewRecorder()
		sim.ServeHTTP(seen, r)
		if _, ok := all[r.FormValue("Action")]; !ok {
			all[r.FormValue("Action")] = seen.Body.String()
		}
		w.Write(seen.Body.Bytes())
	}), node.Metadata())
	ctx := f.Context()
	e, err := c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-a", Secondary: 2, IPv6Prefixes: 1,
		Tags: map[string]string{"pool": "a"}})
	attachment, err2 := c.AttachENI(ctx, e.ID, node.ID, 1, 1)
	addrs, err3 := c.Assign(ctx, e.ID, 2)
	_, err4 := c.AssignPrefixes(ctx, e.ID, 1)
	addrs6, err5 := c.AssignIPv6(ctx, e.ID, 2)
	err = errors.Join(err, err2, err3, err4, err5, c.DeleteOnTermination(ctx, e.ID, attachment),
		c.Unassign(ctx, e.ID, addrs...), c.UnassignIPv6(ctx, e.ID, addrs6, nil),
		drop(c.DescribeENIs(ctx)), drop(c.Subnets(ctx, "vpc-1", "us-east-1a")), drop(c.VPC(ctx, "vpc-1")),
		drop(c.Peers(ctx, "vpc-1")),
		drop(c.Limits(ctx, "p4d.24xlarge")), c.DetachENI(ctx, attachment), c.DeleteENI(ctx, e.ID))
	if err != nil {
		f.Fatal(err)
	}
	return all
}

// wrong lists faults. Each fault has a pattern, and a text that replaces what the pattern matches in a valid answer.
var wrong = []struct {
	there *regexp.Regexp
	place string
}{
	{regexp.MustCompile(`>10\.[0-9.]+<`), ">0.0.0.0<"},
	{regexp.MustCompile(`>10\.[0-9.]+<`), ">::ffff:10.0.0.9<"},
	{regexp.MustCompile(`>10\.[0-9.]+<`), ">169.254.169.254<"},
	{regexp.MustCompile(`>10\.[0-9.]+<`), "><"},
	{regexp.MustCompile(`>2001:[0-9a-f:]+<`), ">fe80::1%eth0<"},
	{regexp.MustCompile(`/28<`), "/0<"},
	{regexp.MustCompile(`/(16|24|56|64)<`), "/0<"},
	{regexp.MustCompile(`/(16|24|28|56|64|80)<`), "/33<"},
	{regexp.MustCompile(`>(eni|subnet|vpc)-[0-9a-z]+<`), ">$1-other<"},
	{regexp.MustCompile(`p4d.24xlarge`), "m5.large"},
	{regexp.MustCompile(`us-east-1a`), "us-east-1b"},
	{regexp.MustCompile(`(?s)<(private|ipv6)[A-Za-z]*Set>.*Set>`), ""},
	{regexp.MustCompile(`>(eni|subnet|vpc|eni-attach)-[0-9a-z]+<`), "><"},
	{regexp.MustCompile(`<macAddress>[^<]*<`), "<macAddress>00:00:00:00:00:00<"},
	{regexp.MustCompile(`<macAddress>[^<]*</macAddress>`), ""},
	{regexp.MustCompile(`>[0-9]+<`), ">-1<"},
	{regexp.MustCompile(`>[0-9]+<`), ">2147483647<"},
	{regexp.MustCompile(`>[0-9]+<`), ">99999999999999999999<"},
	{regexp.MustCompile(`>true<`), ">false<"},
	{regexp.MustCompile(`>(true|false)<`), ">perhaps<"},
	{regexp.MustCompile(`(?s)<item>(.*)</item>`), "<item>$1</item><item>$1</item>"},
	{regexp.MustCompile(`(?s)<item>.*</item>`), ""},
	{regexp.MustCompile(`<requestId>`), "<nextToken>again</nextToken><requestId>"},
	{regexp.MustCompile(`Response\b`), "Result"},
	{regexp.MustCompile(`(?s)^.*$`), ""},
	{regexp.MustCompile(`(?s)^.*$`), "<!DOCTYPE html><html><body>Please log in</body></html>"},
	{regexp.MustCompile(`(?s)^.*$`), "Bad Gateway"},
	{regexp.MustCompile(`(?s)^.*$`),
		"<Response><Errors><Error><Code>InternalError</Code><Message>x</Message></Error></Errors>" +
			"<RequestID>r</RequestID></Response>"},
}

// seed gives the fuzzer each of the answers: unchanged, shortened, and with each fault of wrong.
func seed(f *testing.F, answers ...string) {
	f.Helper()
	for _, a := range answers {
		for _, status := range []uint16{0, 3, 200, 303} { // 200, 203, 400, 503
			f.Add(status, []byte(a))
		}
		f.Add(uint16(0), []byte(a[:len(a)/2]))
		f.Add(uint16(0), []byte(a[:len(a)-1]))
		for _, w := range wrong {
			f.Add(uint16(0), w.there.ReplaceAll([]byte(a), []byte(w.place)))
			for _, at := range w.there.FindAllStringSubmatchIndex(a, -1) {
				place := w.there.ExpandString(nil, w.place, a, at)
				f.Add(uint16(0), slices.Concat([]byte(a[:at[0]]), place, []byte(a[at[1]:])))
			}
		}
	}
}

// attemptContext returns a client whose server always gives this answer.
func attemptContext(status uint16, body []byte) *aws.Client {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200 + int(status)%400)
		w.Write(body)
	})
	return aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: ec2sim.Direct{Handler: h}, Attempts: 1})
}

// judge checks that an error names the action and is not long. It returns true if there is no error.
func judge(t *testing.T, action string, err error) (accepted bool) {
	t.Helper()
	if err == nil {
		return true
	}
	e, ok := errors.AsType[*aws.Error](err)
	if !ok || e.Action != action || !strings.HasPrefix(err.Error(), action+": ") {
		t.Errorf("the error is not about %s: %v", action, err)
	}
	if n := len(err.Error()); n > 2500 {
		t.Errorf("an error of %d bytes", n)
	}
	return false
}

func wantID(t *testing.T, kind, id string) {
	t.Helper()
	if !strings.HasPrefix(id, kind) || id == kind {
		t.Errorf("accepted the ID %q", id)
	}
}

func wantAddrs(t *testing.T, v4, v6 []netip.Addr, p4, p6 []netip.Prefix) {
	t.Helper()
	all := slices.Concat(v4, v6)
	for i, a := range all {
		if a.Is4() != (i < len(v4)) || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast() ||
			slices.Contains(all[:i], a) {
			t.Errorf("accepted the addresses %v", all)
		}
	}
	delegated := slices.Concat(p4, p6)
	for i, p := range delegated {
		bits := 80
		if i < len(p4) {
			bits = 28
		}
		if p.Addr().Is4() != (i < len(p4)) || p.Bits() != bits || p != p.Masked() || slices.Contains(delegated[:i], p) {
			t.Errorf("accepted the prefixes %v", delegated)
		}
	}
}

func wantCIDRs(t *testing.T, v4, v6 []netip.Prefix) {
	t.Helper()
	for i, p := range slices.Concat(v4, v6) {
		if p.IsValid() && (p.Addr().Is4() != (i < len(v4)) || p.Bits() < 8 || p != p.Masked()) {
			t.Errorf("accepted the CIDR %v", p)
		}
	}
}

func wantENI(t *testing.T, e aws.ENI) {
	t.Helper()
	wantID(t, "eni-", e.ID)
	wantAddrs(t, e.Addrs, e.IPv6Addrs, e.Prefixes, e.IPv6Prefixes)
	mac, err := net.ParseMAC(e.MAC)
	bare := len(e.Addrs)+len(e.IPv6Addrs)+len(e.Prefixes)+len(e.IPv6Prefixes) == 0
	if (e.MAC != "" || !bare) && (err != nil || len(mac) != 6 || mac.String() != e.MAC ||
		e.MAC == "00:00:00:00:00:00") {
		t.Errorf("accepted the MAC %q", e.MAC)
	}
	if e.Index < aws.UnknownIndex || e.Card < 0 || e.Index > 1<<10 || e.Card > 1<<10 {
		t.Errorf("accepted card %d, index %d", e.Card, e.Index)
	}
}

func FuzzDescribeENIs(f *testing.F) {
	seed(f, replies(f)["DescribeNetworkInterfaces"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		enis, err := attemptContext(status, body).DescribeENIs(t.Context())
		if judge(t, "DescribeNetworkInterfaces", err) {
			for _, e := range enis {
				wantENI(t, e)
			}
		}
		one, err := attemptContext(status, body).DescribeENIs(t.Context(), aws.ByID("eni-1"))
		if judge(t, "DescribeNetworkInterfaces", err) && len(one) > 0 && one[0].ID != "eni-1" {
			t.Errorf("asked for eni-1, accepted %s", one[0].ID)
		}
	})
}

func FuzzDescribeSubnets(f *testing.F) {
	seed(f, replies(f)["DescribeSubnets"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		subnets, err := attemptContext(status, body).Subnets(t.Context(), "vpc-1", "us-east-1a")
		if !judge(t, "DescribeSubnets", err) {
			return
		}
		for _, s := range subnets {
			wantID(t, "subnet-", s.ID)
			wantCIDRs(t, []netip.Prefix{s.CIDR}, []netip.Prefix{s.IPv6CIDR})
			if s.Free < 0 || s.VPC != "vpc-1" && s.VPC != "" || s.Zone != "us-east-1a" && s.Zone != "" {
				t.Errorf("accepted %+v", s)
			}
		}
	})
}

func FuzzDescribeTypes(f *testing.F) {
	seed(f, replies(f)["DescribeInstanceTypes"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		l, err := attemptContext(status, body).Limits(t.Context(), "p4d.24xlarge")
		if !judge(t, "DescribeInstanceTypes", err) {
			return
		}
		outside := func(n, least, most int) bool { return n < least || n > most }
		if outside(l.ENIs, 1, 1<<10) || outside(l.IPv4PerENI, 1, 1<<12) || outside(l.IPv6PerENI, 0, 1<<12) ||
			outside(len(l.Cards), 1, 1<<8) ||
			slices.ContainsFunc(l.Cards, func(n int) bool { return outside(n, 0, 1<<10) }) ||
			outside(l.PodENIs(), 0, l.ENIs-1) {
			t.Errorf("accepted %+v", l)
		}
	})
}

func FuzzDescribeVPCs(f *testing.F) {
	seed(f, replies(f)["DescribeVpcs"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		v, err := attemptContext(status, body).VPC(t.Context(), "vpc-1")
		if judge(t, "DescribeVpcs", err) {
			wantCIDRs(t, v.CIDRs, v.IPv6CIDRs)
			if v.ID != "vpc-1" || len(v.CIDRs) == 0 {
				t.Errorf("accepted %+v", v)
			}
		}
	})
}

func FuzzDescribePeerings(f *testing.F) {
	seed(f, replies(f)["DescribeVpcPeeringConnections"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		peers, err := attemptContext(status, body).Peers(t.Context(), "vpc-1")
		if judge(t, "DescribeVpcPeeringConnections", err) {
			for _, v := range peers {
				wantID(t, "vpc-", v.ID)
				wantCIDRs(t, v.CIDRs, v.IPv6CIDRs)
			}
		}
	})
}

func FuzzCreate(f *testing.F) {
	seed(f, replies(f)["CreateNetworkInterface"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		e, err := attemptContext(status, body).CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-a", Secondary: 2,
			IPv6Prefixes: 1})
		if judge(t, "CreateNetworkInterface", err) {
			wantENI(t, e)
			if len(e.Addrs)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0 || e.Subnet != "subnet-a" && e.Subnet != "" {
				t.Errorf("accepted %+v", e)
			}
		}
	})
}

func FuzzAssign(f *testing.F) {
	all := replies(f)
	seed(f, all["AssignPrivateIpAddresses"], all["AssignIpv6Addresses"],
		`<AssignPrivateIpAddressesResponse><assignedIpv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item><item><ipv4Prefix>10.0.0.32/28</ipv4Prefix></item></assignedIpv4PrefixSet></AssignPrivateIpAddressesResponse>`,
		`<AssignIpv6AddressesResponse><assignedIpv6PrefixSet><item>2001:db8:1:1:1::/80</item><item>2001:db8:1:1:2::/80</item></assignedIpv6PrefixSet></AssignIpv6AddressesResponse>`)
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		const eni, n = "eni-00000000000000002", 2
		c, ctx := attemptContext(status, body), t.Context()
		v4, err := c.Assign(ctx, eni, n)
		if judge(t, "AssignPrivateIpAddresses", err) {
			wantAddrs(t, v4, nil, nil, nil)
		}
		p4, err4 := c.AssignPrefixes(ctx, eni, n)
		if judge(t, "AssignPrivateIpAddresses", err4) {
			wantAddrs(t, nil, nil, p4, nil)
		}
		v6, err6 := c.AssignIPv6(ctx, eni, n)
		if judge(t, "AssignIpv6Addresses", err6) {
			wantAddrs(t, nil, v6, nil, nil)
		}
		p6, errP6 := c.AssignIPv6Prefixes(ctx, eni, n)
		if judge(t, "AssignIpv6Addresses", errP6) {
			wantAddrs(t, nil, nil, nil, p6)
		}
		for got, err := range map[int]error{len(v4): err, len(p4) + 100: err4, len(v6) + 200: err6,
			len(p6) + 300: errP6} {
			if err == nil && got%100 != n {
				t.Errorf("asked for %d, got %d", n, got%100)
			}
		}
	})
}

// FuzzChange tests the calls whose answer only confirms that EC2 has carried out the call.
func FuzzChange(f *testing.F) {
	all := replies(f)
	seed(f, all["AttachNetworkInterface"], all["DeleteNetworkInterface"], all["DetachNetworkInterface"],
		all["ModifyNetworkInterfaceAttribute"],
		all["UnassignPrivateIpAddresses"], all["UnassignIpv6Addresses"])
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		c, ctx := attemptContext(status, body), t.Context()
		attachment, err := c.AttachENI(ctx, "eni-1", "i-1", 0, 1)
		if err == nil && attachment == "" {
			t.Error("accepted an attachment without an ID")
		}
		for action, err := range map[string]error{
			"AttachNetworkInterface":          err,
			"ModifyNetworkInterfaceAttribute": c.DeleteOnTermination(ctx, "eni-1", "eni-attach-1"),
			"DetachNetworkInterface":          c.DetachENI(ctx, "eni-attach-1"),
			"DeleteNetworkInterface":          c.DeleteENI(ctx, "eni-1"),
			"UnassignPrivateIpAddresses":      c.Unassign(ctx, "eni-1", netip.MustParseAddr("10.0.0.9")),
			"UnassignIpv6Addresses": c.UnassignIPv6(ctx, "eni-1",
				[]netip.Addr{netip.MustParseAddr("2001:db8::9")}, nil),
		} {
			if judge(t, action, err) {
				wantDone(t, action, body)
			}
		}
	})
}

// wantDone parses the body without the Client, and checks that the body confirms the action.
func wantDone(t *testing.T, action string, body []byte) {
	t.Helper()
	var answer struct {
		XMLName xml.Name
		Return  []string `xml:"return"`
	}
	err := xml.Unmarshal(body, &answer)
	said := strings.TrimSpace(fmt.Sprint(answer.Return))
	if err != nil || answer.XMLName.Local != action+"Response" || strings.Contains(said, "false") {
		t.Errorf("%s: accepted %q (%v)", action, body, err)
	}
}
