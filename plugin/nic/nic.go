// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package nic reads the requests of a pod about its network interfaces. A pod can ask for an address, a subnet,
// security groups, or an ENI. Package ipam/lease decides which requests are permitted.
//
// There are two kinds of requests. A pod asks by an annotation, [Annotation], for all interfaces of one ADD. The caller
// of the plugin, such as Multus, asks for the only interface of an ADD. It writes this request into the configuration,
// as CNI's conventions say: with the capabilities ips and deviceID, or with args.cni.
package nic

//go:generate go run ../../internal/codec/gen

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

// Annotation is the annotation with which a pod asks for its interfaces. Its value is a JSON list with an object for
// each interface, see [Request]. The runtime passes annotations to a plugin whose configuration declares the capability
// io.kubernetes.cri.pod-annotations.
const Annotation = "cni-ipvlan-vpc-k8s/nics"

// Primary is the name of a pod's first interface. All runtimes of Kubernetes use this name, so the annotation applies
// to the ADD for this interface.
const Primary = "eth0"

// The limits of the text of requests. A user of Kubernetes writes this text, so its length is checked before it is
// parsed. No instance has more than mostInterfaces ENIs, and no useful text is longer than mostText.
const (
	mostText       = 32 << 10 // bytes
	mostInterfaces = 64
)

// A Request says which properties a pod wants for one of its interfaces. The zero Request asks for no property.
type Request struct {
	Name           string       // of the interface; empty: the plugin chooses
	Subnet         string       // ID of the subnet of its ENI
	Addrs          []netip.Addr // its addresses, at most one of each family
	SecurityGroups []string     // IDs of the security groups of its ENI, exactly these
	ENI            string       // ID of an ENI that an operator or another program has created
	Exclusive      bool         // no other pod gets addresses of its ENI
}

// Asks reports whether the request asks for any property besides the interface's name.
func (r Request) Asks() bool {
	return r.Subnet != "" || len(r.Addrs) > 0 || len(r.SecurityGroups) > 0 || r.ENI != "" || r.Exclusive
}

// An Asked is the part of a network configuration that has a pod's requests.
//
//codec:members exported
type Asked struct {
	RuntimeConfig Capabilities `json:"runtimeConfig"`
	Args          Args         `json:"args"` // CNI conventions, "args in network config"
}

// Capabilities has the values that the runtime writes for a plugin's declared capabilities.
//
//codec:describe
type Capabilities struct {
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`

	// The capabilities ips, mac and deviceID (CNI conventions, "Dynamic Plugin specific fields").
	IPs      []string `json:"ips"`
	MAC      string   `json:"mac"`
	DeviceID string   `json:"deviceID"`
}

// Args are the arguments that the caller of a plugin writes into the plugin's configuration.
//
//codec:describe
type Args struct {
	CNI json.RawMessage `json:"cni"`
}

// Annotated reports whether the pod has an annotation that applies to this ADD.
func (a *Asked) Annotated(ifName string) bool {
	_, annotated := a.RuntimeConfig.Annotations[Annotation]
	return annotated && ifName == Primary
}

// Asks reports whether an ADD may have requests for its interfaces. It does not parse them, because a mistake in the
// pod's annotation must not make a DEL fail.
func (a *Asked) Asks(ifName string) bool { return a.Annotated(ifName) || !a.callerAsksNothing() }

// Requests returns the requests for the interfaces of an ADD: first for ifName, and then for further interfaces. The
// list is empty if there are no requests. An error names all mistakes in the requests.
func (a *Asked) Requests(ifName string) ([]Request, error) {
	if !a.Asks(ifName) {
		return nil, nil
	}
	annotated := a.Annotated(ifName)
	one, err := a.callerRequest()
	switch {
	case err != nil:
		return nil, err
	case !annotated && one.Asks():
		return []Request{one}, nil
	case !annotated:
		return nil, nil
	case one.Asks():
		return nil, fmt.Errorf("the interface %s has two requests, one by the annotation "+Annotation+", and one by "+
			"ips, deviceID or args.cni: want only one of these requests", ifName)
	}
	rs, err := parseAnnotation(a.RuntimeConfig.Annotations[Annotation])
	if err != nil {
		return nil, fmt.Errorf("annotation "+Annotation+": %w", err)
	}
	return rs, nil
}

func (a *Asked) callerAsksNothing() bool {
	c := &a.RuntimeConfig
	return len(c.IPs) == 0 && c.MAC == "" && c.DeviceID == "" && (len(a.Args.CNI) == 0 || string(a.Args.CNI) == "null")
}

type jsonRequest struct {
	Name, Subnet, IP, ENI string
	SecurityGroups        []string
	Exclusive             bool
}

func parseAnnotation(text string) ([]Request, error) {
	var entries []map[string]json.RawMessage
	if err := decode([]byte(text), &entries); err != nil {
		return nil, fmt.Errorf(
			`%w: want a list with an object for each interface, for example [{"subnet": "subnet-1"}]`, err)
	}
	if len(entries) == 0 {
		return nil, errors.New("the list is empty: want an object for each interface, or no annotation")
	}
	if len(entries) > mostInterfaces {
		return nil, fmt.Errorf("%d interfaces: a pod can have %d at most", len(entries), mostInterfaces)
	}
	var rs []Request
	var wrong []error
	all := earlierRequests{names: map[string]bool{}, addrs: map[netip.Addr]bool{}, enis: map[string]bool{}}
	for i, entry := range entries {
		r, err := parseRequest(entry)
		if err == nil {
			err = all.addRequest(r, i)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("interface %d: %w", i+1, err))
		}
		rs = append(rs, r)
	}
	return rs, excerpt.Join(wrong)
}

type earlierRequests struct {
	names map[string]bool
	addrs map[netip.Addr]bool
	enis  map[string]bool // whether a request wants the ENI exclusively
}

// addRequest adds the request with the index i, and returns an error if it conflicts with earlier requests.
func (b earlierRequests) addRequest(r Request, i int) error {
	exclusive, shared := b.enis[r.ENI]
	var err error
	switch {
	case i == 0 && r.Name != "" && r.Name != Primary:
		err = fmt.Errorf("name: %q: want %s, the name of the first interface, or no name", r.Name, Primary)
	case i > 0 && r.Name == Primary, r.Name != "" && b.names[r.Name]:
		err = fmt.Errorf("name: %q: another interface of the pod has this name", r.Name)
	case slices.ContainsFunc(r.Addrs, func(a netip.Addr) bool { return b.addrs[a] }):
		err = fmt.Errorf("ip: %s: another interface of the pod asks for this address", r.Addrs[0])
	case r.ENI != "" && shared && (exclusive || r.Exclusive):
		err = fmt.Errorf("eni: %s: two interfaces of the pod ask for this ENI, and one of the two has "+
			"exclusive: true", r.ENI)
	}
	b.names[r.Name], b.enis[r.ENI] = true, exclusive || r.Exclusive
	for _, a := range r.Addrs {
		b.addrs[a] = true
	}
	return err
}

// callerRequest returns the request that the capabilities and args.cni make for the only interface of an ADD.
func (a *Asked) callerRequest() (Request, error) {
	c := &a.RuntimeConfig
	if c.MAC != "" {
		return Request{}, fmt.Errorf("runtimeConfig: mac: %s: want no mac, because an interface has the MAC address "+
			"of its ENI",
			excerpt.Quote(c.MAC))
	}
	r, err := a.argsRequest()
	if err != nil {
		return r, fmt.Errorf("args.cni: %w", err)
	}
	if c.DeviceID != "" {
		if r.ENI != "" && r.ENI != c.DeviceID {
			return r, fmt.Errorf("runtimeConfig: deviceID: %s: args.cni asks for the ENI %s: want only one of these "+
				"ENIs",
				excerpt.Quote(c.DeviceID), r.ENI)
		}
		if r.ENI = c.DeviceID; !values.IsID(r.ENI, "eni") {
			return r, fmt.Errorf(
				"runtimeConfig: deviceID: %s: want the ID of an ENI, for example eni-0123456789abcdef0",
				excerpt.Quote(r.ENI))
		}
	}
	if len(c.IPs) == 0 {
		return r, nil
	}
	if len(r.Addrs) > 0 {
		return r, fmt.Errorf("runtimeConfig: ips: %s: args.cni asks for %s: want only one of these requests",
			quotedTexts(c.IPs), r.Addrs[0])
	}
	if r.Addrs, err = parseAddrs(c.IPs); err != nil {
		return r, fmt.Errorf("runtimeConfig: ips: %w", err)
	}
	return r, nil
}

// argsRequest reads args.cni. args.cni has the keys of a [Request], and the keys "ips" and "labels" of CNI's
// conventions. args.cni must not have the key "name", because CNI_IFNAME gives the name of the link. This plugin
// ignores the key "labels".
func (a *Asked) argsRequest() (r Request, err error) {
	if len(a.Args.CNI) == 0 || string(a.Args.CNI) == "null" {
		return r, nil
	}
	var entry map[string]json.RawMessage
	if err := decode(a.Args.CNI, &entry); err != nil {
		return r, err
	}
	delete(entry, "labels")
	ips, listed := entry["ips"]
	delete(entry, "ips")
	if r, err = parseRequest(entry); err != nil {
		return r, err
	}
	if r.Name != "" {
		return r, fmt.Errorf("name: %q: want no name, because CNI_IFNAME is the name of the interface", r.Name)
	}
	if !listed {
		return r, nil
	}
	var texts []string
	if err := decode(ips, &texts); err != nil {
		return r, fmt.Errorf("ips: %w", err)
	}
	if len(r.Addrs) > 0 && len(texts) > 0 {
		return r, errors.New("ip and ips: want only one of these keys")
	}
	if len(texts) == 0 {
		return r, nil
	}
	if r.Addrs, err = parseAddrs(texts); err != nil {
		return r, fmt.Errorf("ips: %w", err)
	}
	return r, nil
}

// parseRequest reads one request, and returns all mistakes together.
func parseRequest(entry map[string]json.RawMessage) (r Request, _ error) {
	var wrong []error
	mistake := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	var o jsonRequest
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		into, kind := o.fieldFor(key)
		switch {
		case into == nil:
			mistake("%s: there is no such key: the keys are name, subnet, ip, securityGroups, eni and exclusive",
				excerpt.Quote(key))
		case decode(entry[key], into) != nil:
			mistake("%s: %s: want %s", key, shownValue(entry[key]), kind)
		}
	}
	if fault := ifname.Refused(o.Name); o.Name != "" && fault != "" {
		mistake("name: %s: the name %s: want %s", excerpt.Quote(o.Name), fault, ifname.Wanted)
	}
	if o.Subnet != "" && !values.IsID(o.Subnet, "subnet") {
		mistake("subnet: %s: want the ID of a subnet, for example subnet-0123456789abcdef0", excerpt.Quote(o.Subnet))
	}
	for _, g := range o.SecurityGroups {
		if !values.IsID(g, "sg") {
			mistake("securityGroups: %s: want IDs of security groups, for example sg-0123456789abcdef0",
				excerpt.Quote(g))
		}
	}
	switch {
	case o.ENI == "":
	case !values.IsID(o.ENI, "eni"):
		mistake("eni: %s: want the ID of an ENI, for example eni-0123456789abcdef0", excerpt.Quote(o.ENI))
	case o.Subnet != "" || len(o.SecurityGroups) > 0:
		mistake("eni: %s: want no subnet and no securityGroups beside eni, because the ENI already has both", o.ENI)
	}
	r = Request{Name: o.Name, Subnet: o.Subnet, ENI: o.ENI, Exclusive: o.Exclusive}
	if len(o.SecurityGroups) > 0 {
		r.SecurityGroups = slices.Compact(slices.Sorted(slices.Values(o.SecurityGroups)))
	}
	if o.IP != "" {
		var err error
		if r.Addrs, err = parseAddrs([]string{o.IP}); err != nil {
			mistake("ip: %w", err)
		}
	}
	return r, excerpt.Join(wrong)
}

// shownValue returns a value of JSON for a message.
func shownValue(raw json.RawMessage) string {
	const short = 64
	if text := string(raw); len(text) <= short {
		return excerpt.Plain(text)
	}
	return excerpt.Quote(string(raw))
}

// quotedTexts returns the first texts of a list, and how many more there are, for a message.
func quotedTexts(texts []string) string {
	const few = 3
	var all []string
	for _, text := range texts[:min(few, len(texts))] {
		all = append(all, excerpt.Quote(text))
	}
	if rest := len(texts) - few; rest > 0 {
		all = append(all, fmt.Sprintf("and %d more", rest))
	}
	return "[" + strings.Join(all, " ") + "]"
}

// fieldFor returns a pointer to the field for a key of a request, and the name of the JSON type of its value. For an
// unknown key, the pointer is nil. fieldFor uses no map: every command would have to make the map when it starts.
func (o *jsonRequest) fieldFor(key string) (into any, kind string) {
	switch key {
	case "name":
		return &o.Name, "a string"
	case "subnet":
		return &o.Subnet, "a string"
	case "ip":
		return &o.IP, "a string"
	case "securityGroups":
		return &o.SecurityGroups, "a list of strings"
	case "eni":
		return &o.ENI, "a string"
	case "exclusive":
		return &o.Exclusive, "true or false"
	}
	return nil, ""
}

// parseAddrs reads addresses, at most one of each family. Some callers write an address with a prefix length, such as
// 10.0.1.7/24: parseAddrs ignores the length.
func parseAddrs(texts []string) (all []netip.Addr, _ error) {
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if p, e := netip.ParsePrefix(text); e == nil {
			a, err = p.Addr(), nil
		}
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("%s: want an address, for example 10.0.1.7", excerpt.Quote(text))
		}
		if slices.ContainsFunc(all, func(other netip.Addr) bool { return other.Is4() == a.Is4() }) {
			return nil, fmt.Errorf("%s: want at most one address of each family", quotedTexts(texts))
		}
		all = append(all, a)
	}
	return all, nil
}

// decode reads exactly one JSON value, if the text is not too long.
func decode(text []byte, into any) error {
	if len(text) > mostText {
		return fmt.Errorf("the value has %d bytes: %d are allowed", len(text), mostText)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the value is not the JSON that is expected: %s", excerpt.Message(err.Error()))
	}
	return nil
}
