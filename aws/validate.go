// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// This Go file validates the answers of EC2 and the metadata service. A wrong address in a pod is worse than a pod
// without an address. So an invalid part of an answer is an error, and so is a missing number. An answer must have
// these properties:
//
//   - An ID begins with the kind of its object: eni-..., subnet-..., vpc-....
//   - An address is a unicast address of the expected family, without an IPv6 zone. It is not 0.0.0.0, loopback or
//     link-local, because a VPC cannot have these ranges (VPC user guide, "VPC CIDR blocks").
//   - A delegated prefix is a /28, or a /80 of IPv6, without host bits (EC2 user guide, "Prefix delegation"). Pods get
//     all addresses of a prefix, and a wider prefix would have addresses of other hosts.
//   - The CIDR of a VPC or a subnet is not wider than a /8. The suite adds a route to this CIDR, and a route to
//     0.0.0.0/0 would catch the packets to all destinations.
//   - No address or prefix appears twice in one ENI, or in the answer to one call.
//   - A MAC is a unicast address of Ethernet. If an ENI has addresses, the answer must contain the ENI's MAC, because
//     the suite finds the ENI's link by the MAC.
//   - A number is in a plausible range: see the constants below.
//   - An answer is about the ENI, VPC or instance type in the request. An answer has as many addresses as the request
//     asks for.
//
// The caller must check two more properties, which not every answer shows. An address is in the subnet of its ENI, and
// no other ENI has the address.

// The largest valid numbers. They are several times larger than the numbers that EC2 has today: a p5.48xlarge has 32
// cards, and an ENI of an m8i has 64 addresses.
const (
	maxENIs  = 1024 // ENIs of an instance or of a card; also the largest device index
	maxCards = 256
	maxAddrs = 4096 // addresses of an ENI

	maxTimeout = 10 * 432000 // timeout of an idle connection, in seconds; EC2's longest is five days
)

// checkID returns an error if the ID does not begin with idPrefix, or if the rest of the ID is invalid.
func checkID(idPrefix, id string) error {
	if rest, ok := strings.CutPrefix(id, idPrefix); !ok || rest == "" || strings.ContainsAny(rest, " \t\r\n") {
		return fmt.Errorf("%.80q is not an ID that begins with %s", id, idPrefix)
	}
	return nil
}

// parseNumber returns a number of an answer, or an error if the number is missing or out of range.
func parseNumber[T ~int32 | ~int64](what string, n *T, least, most int) (int, error) {
	if n == nil || int64(*n) < int64(least) || int64(*n) > int64(most) {
		return 0, fmt.Errorf("%s is %s, not between %d and %d", what, shownNumber(n), least, most)
	}
	return int(*n), nil
}

func shownNumber[T any](v *T) string {
	if v == nil {
		return "missing"
	}
	return fmt.Sprint(*v)
}

// parseMAC returns the MAC in the format of the kernel.
func parseMAC(s string) (string, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		return "", fmt.Errorf("%.80q is not the MAC of an interface", s)
	}
	return mac.String(), nil
}

// The parsers of addresses, CIDRs and delegated prefixes. Each parser accepts only one family.

func ipv4(s string) (netip.Addr, error)         { return parseAddr(s, "IPv4", netip.Addr.Is4) }
func ipv6(s string) (netip.Addr, error)         { return parseAddr(s, "IPv6", isIPv6) }
func ipv4CIDR(s string) (netip.Prefix, error)   { return parseCIDR(s, "IPv4", netip.Addr.Is4) }
func ipv6CIDR(s string) (netip.Prefix, error)   { return parseCIDR(s, "IPv6", isIPv6) }
func ipv4Prefix(s string) (netip.Prefix, error) { return parsePrefix(s, ipv4CIDR, 28) }
func ipv6Prefix(s string) (netip.Prefix, error) { return parsePrefix(s, ipv6CIDR, 80) }

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }

func parseAddr(s, family string, is func(netip.Addr) bool) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || !is(a) || !a.IsGlobalUnicast() {
		return netip.Addr{}, fmt.Errorf("%.80q is not an %s address that an ENI can have", s, family)
	}
	return a, nil
}

func parseCIDR(s, family string, is func(netip.Addr) bool) (netip.Prefix, error) {
	const widest = 8
	p, err := netip.ParsePrefix(s)
	if err != nil || !is(p.Addr()) || p.Bits() < widest {
		return netip.Prefix{}, fmt.Errorf("%.80q is not an %s CIDR that a VPC can have", s, family)
	}
	return p.Masked(), nil
}

func parsePrefix(s string, cidr func(string) (netip.Prefix, error), bits int) (netip.Prefix, error) {
	p, err := cidr(s)
	if raw, _ := netip.ParsePrefix(s); err == nil && (p.Bits() != bits || raw != p) {
		return netip.Prefix{}, fmt.Errorf("%.80q is not a delegated prefix: it must be an aligned /%d", s, bits)
	}
	return p, err
}

// checkUnique returns an error if a value appears twice.
func checkUnique[T comparable](values []T) error {
	seen := make(map[T]bool, len(values))
	for _, v := range values {
		if seen[v] {
			return fmt.Errorf("%v appears twice", v)
		}
		seen[v] = true
	}
	return nil
}

// checkCount returns an error if there are not exactly n values, or if a value appears twice. The argument what says
// what the values are, such as "addresses".
func checkCount[T comparable](n int, what string, values []T) error {
	if len(values) != n {
		return fmt.Errorf("number of %s: asked for %d, but EC2 answers with %d: %v", what, n, len(values), values)
	}
	return checkUnique(values)
}

// checkSubject returns an error if the request and the answer name different objects. The second argument is nil if the
// answer names no object.
func checkSubject(asked string, answered *string) error {
	if answered != nil && *answered != asked {
		return fmt.Errorf("asked about %s, but EC2 answers about %.80q", asked, *answered)
	}
	return nil
}

// validate joins the errors about an answer of EC2 into one *Error. If all are nil, it returns nil. MaybeDone is true,
// because EC2 may have carried out the call although its answer is invalid.
func validate(action string, wrong ...error) error {
	if err := errors.Join(wrong...); err != nil {
		return &Error{Action: action, MaybeDone: true, Err: fmt.Errorf("the answer is invalid: %w", err)}
	}
	return nil
}
