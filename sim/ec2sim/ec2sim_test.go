// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// world is the configuration of most tests: a VPC with IPv4 and IPv6, whose subnets have different sizes, families and
// zones.
var world = func() Config {
	c := World(`
		vpc-1       10.0.0.0/16 100.64.0.0/16 2001:db8:1::/56 -10.77.0.0/16 -2001:db8:7::/56 Name=one
		subnet-a    10.0.0.0/24 public
		subnet-b    10.0.1.0/24 role=pods
		subnet-big  10.0.16.0/20
		subnet-c    10.0.2.0/24 us-east-1b
		subnet-dual 10.0.4.0/24 2001:db8:1:4::/64
		subnet-six  2001:db8:1:6::/64
		subnet-tiny 10.0.3.0/28
		vpc-2       10.2.0.0/16 default
		subnet-v2   10.2.0.0/24 default
		pcx-1       vpc-1 vpc-9 10.9.0.0/16 2001:db8:9::/56
		pcx-2       vpc-8 vpc-1 deleted`)
	c.Peerings[0].Accepter.Account, c.Peerings[0].Accepter.Region = "210987654321", "eu-west-1"
	c.Peerings[1].Tags = map[string]string{"old": "yes"}
	c.SecurityGroups = []string{"sg-node", "sg-1", "sg-2", "sg-3", "sg-4", "sg-5", "sg-6"}
	return c
}()

func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func cidrs(s string) (list []netip.Prefix) {
	for _, b := range strings.Fields(s) {
		list = append(list, cidr(b))
	}
	return list
}

// start returns a simulator with the Config c, and its only instance. The instance is the m5.large i-1, with the boot
// ENI eni-1 and the address 10.0.0.4.
func start(t testing.TB, c Config) (*Sim, *Instance) {
	t.Helper()
	sim, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return sim, run(t, sim, RunInstance{Type: "m5.large", Subnet: "subnet-a", SecurityGroups: []string{"sg-node"}})
}

func run(t testing.TB, sim *Sim, r RunInstance) *Instance {
	t.Helper()
	i, err := sim.RunInstance(r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// short matches the simulator's IDs as tests write them: eni-2 for eni-00000000000000002.
var short = regexp.MustCompile(`\b(eni-attach|eni|i)-([0-9a-f]{1,5})\b`)

func long(s string) string {
	return short.ReplaceAllStringFunc(s, func(id string) string {
		m := short.FindStringSubmatch(id)
		return m[1] + "-" + strings.Repeat("0", 17-len(m[2])) + m[2]
	})
}

// post makes the call that a line describes, for example "AttachNetworkInterface DeviceIndex=1 InstanceId=i-1".
func post(t testing.TB, h http.Handler, line string) (code int, body string) {
	t.Helper()
	action, params, _ := strings.Cut(strings.TrimSpace(long(line)), " ")
	values := url.Values{"Action": {action}, "Version": {apiVersion}}
	for _, w := range strings.Fields(params) {
		name, value, _ := strings.Cut(w, "=")
		values.Set(name, value)
	}
	r := httptest.NewRequest("POST", "/", strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// must makes a call that must succeed.
func must(t testing.TB, h http.Handler, line string) element {
	t.Helper()
	code, body := post(t, h, line)
	if code != http.StatusOK {
		t.Fatalf("%s: %d %s", line, code, body)
	}
	return parse(t, body)
}

// refused makes a call that must fail. It returns the code as "400 InvalidParameterValue".
func refused(t testing.TB, h http.Handler, line string) (code, message string) {
	t.Helper()
	status, body := post(t, h, line)
	e := parse(t, body)
	return strings.TrimSpace(fmt.Sprint(status, " ", strings.Join(e.all("Code"), " "))),
		strings.Join(e.all("Message"), " ")
}

// An element is an XML element with any content.
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Elements []element `xml:",any"`
}

func parse(t testing.TB, body string) element {
	t.Helper()
	var e element
	if err := xml.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return e
}

// all returns the texts of the elements with this name, at any depth.
func (e element) all(name string) []string {
	var texts []string
	if e.XMLName.Local == name && len(e.Elements) == 0 {
		texts = append(texts, e.Text)
	}
	for _, inner := range e.Elements {
		texts = append(texts, inner.all(name)...)
	}
	return texts
}

// one returns the text of the only element with this name.
func (e element) one(t testing.TB, name string) string {
	t.Helper()
	texts := e.all(name)
	if len(texts) != 1 {
		t.Fatalf("%d elements %s: %v", len(texts), name, texts)
	}
	return texts[0]
}

func TestNewTellsEveryMistake(t *testing.T) {
	_, err := New(Config{
		VPCs: []VPC{{ID: "vpc-1", CIDRs: cidrs("10.0.0.0/8"), IPv6CIDRs: cidrs("2001:db8:1::/62")}, {ID: "vpc-1"}},
		Subnets: []Subnet{
			{ID: "subnet-a", VPC: "vpc-1", Zone: "eu-west-1a", CIDR: cidr("10.0.0.0/24")},
			{ID: "subnet-b", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("10.0.0.0/25")},
			{ID: "subnet-c", VPC: "vpc-3", Zone: "us-east-1a", CIDR: cidr("10.0.3.1/24")},
			{ID: "subnet-d", VPC: "vpc-1", Zone: "us-east-1a"},
			{ID: "subnet-e", VPC: "vpc-1", Zone: "us-east-1a", IPv6CIDR: cidr("2001:db8:1::/65")},
			{ID: "subnet-f", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("10.0.4.0/24"),
				IPv6CIDR: cidr("2001:db8:2::/64")},
			{ID: "subnet-g", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("10.0.5.0/24"), AssignIPv6: true},
		},
		Peerings: []Peering{{ID: "pcx-1", Requester: PeerVPC{ID: "vpc-8"}, Accepter: PeerVPC{ID: "vpc-9"},
			Status: "fine"}},
		InstanceTypes: []InstanceType{{Name: "huge"}},
		Denied:        []string{"Everything"},
		Buckets: map[string]Bucket{"Everything": {Size: 1, Refill: 1}, "DescribeVpcs": {Size: 0, Refill: 1},
			Unfiltered: {Size: 1, Refill: 0}},
		Lag: Lag{Most: -1},
	})
	want := strings.Join([]string{
		`vpc-1: 10.0.0.0/8: an IPv4 block between /16 and /28 is needed`,
		`vpc-1: 2001:db8:1::/62: an IPv6 block of /44, /48 and so on to /60 is needed`,
		`"vpc-1": an ID that begins with "vpc-" and is there once is needed`,
		`vpc-1: no CIDR`,
		`subnet-a: "eu-west-1a" is no zone of us-east-1`,
		`subnet-b: 10.0.0.0/25 overlaps subnet-a`,
		`subnet-c: 10.0.3.1/24: an IPv4 block between /16 and /28 is needed`,
		`subnet-c: no VPC "vpc-3"`,
		`subnet-d: no CIDR`,
		`subnet-e: 2001:db8:1::/65: an IPv6 block of /44, /48 and so on to /64 is needed`,
		`subnet-f: 2001:db8:2::/64 is not in vpc-1`,
		`subnet-g: AssignIPv6 without IPv6CIDR`,
		`pcx-1: neither side is a VPC of the Config`,
		`pcx-1: no status "fine"`,
		`instance type "huge": name, ENIs and IPv4PerENI are needed`,
		`denied: no action "Everything"`,
		`bucket "DescribeVpcs": the name of an action, a size and a refill rate are needed`,
		`bucket "Everything": the name of an action, a size and a refill rate are needed`,
		`lag: less than none`,
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}
