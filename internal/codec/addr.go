// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import "net/netip"

// Addr is an IP address.
func Addr(v *netip.Addr, c *Codec) {
	if !c.Writes() {
		*v = Scan(c, parseAddr)
		return
	}
	if v.Zone() != "" { // a zone may be any text
		s := v.String()
		Text(&s, c)
		return
	}
	b, _ := v.AppendText(append(c.out, '"')) // it has no error
	c.out = append(b, '"')
}

// parseAddr is netip.ParseAddr with less than half the work for IPv4. Most addresses are
// IPv4, and a node may have hundreds.
func parseAddr(s string) (netip.Addr, error) {
	var all, part uint32
	dots, digits := 0, 0
	for i := 0; i < len(s); i++ {
		if d := uint32(s[i]) - '0'; d <= 9 {
			part = part*10 + d
			digits++
			continue
		}
		if s[i] != '.' || !plain(part, digits) {
			return netip.ParseAddr(s)
		}
		all, part = all<<8|part, 0
		dots, digits = dots+1, 0
	}
	if dots != 3 || !plain(part, digits) {
		return netip.ParseAddr(s)
	}
	return netip.AddrFrom4([4]byte{byte(all >> 16), byte(all >> 8), byte(all), byte(part)}), nil
}

// plain reports whether a part of an IPv4 address has no leading zeros and is at most 255.
func plain(part uint32, digits int) bool {
	return digits == 1 || digits == 2 && part >= 10 || digits == 3 && part >= 100 && part <= 255
}
