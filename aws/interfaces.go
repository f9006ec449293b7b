// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// macsPath is the metadata path of the list of the ENIs' MACs. The path of an ENI's key is macsPath, the MAC and the
// key (EC2 user guide, "Instance metadata categories").
const macsPath = "network/interfaces/macs/"

// eniKeys are the metadata keys that an ENI can have. Metadata omits keys that have no value.
var eniKeys = []string{
	"interface-id", "device-number", "subnet-id", "vpc-id", "security-group-ids",
	"network-card", "network-card-index", // other programs read the first key, but the user guide has the second
	"local-ipv4s", "ipv4-prefix", "subnet-ipv4-cidr-block", "vpc-ipv4-cidr-block", "vpc-ipv4-cidr-blocks",
	"ipv6s", "ipv6-prefix", "subnet-ipv6-cidr-blocks", "vpc-ipv6-cidr-blocks",
}

// ENIs returns the ENIs that metadata shows for this instance. The boot ENI is the first. The other ENIs are sorted by
// card, device index and MAC. On each card, ENIs with UnknownIndex come last.
//
// If one of an ENI's keys cannot be read or has an invalid value, the method logs a warning and omits the ENI. If the
// method returned the ENI without this key, the caller could wrongly believe that the ENI has no addresses. A new ENI
// has no ID for some seconds, and the method omits such an ENI without a warning. If the method must omit all ENIs, it
// returns the errors about their keys.
func (c *Client) ENIs(ctx context.Context) ([]ENI, error) {
	primary, err := c.metadata.readPath(ctx, "mac")
	if err != nil {
		return nil, err
	}
	listing, err := c.metadata.readPath(ctx, macsPath)
	if err != nil {
		return nil, err
	}
	var enis []ENI
	var errs []error
	for _, k := range c.readENIValues(ctx, strings.Fields(listing)) {
		e, err := k.toENI(primary)
		switch {
		case err != nil:
			errs = append(errs, err)
		case e.ID != "":
			enis = append(enis, e)
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("EC2 metadata %s: %w", metadataPath+macsPath, doneError(ctx))
	}
	if len(enis) == 0 && len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for _, err := range errs {
		slog.WarnContext(ctx, "the metadata service does not describe an ENI completely: the ENI is ignored",
			"because", err)
	}
	slices.SortFunc(enis, compareENIs)
	return enis, nil
}

// compareENIs compares two ENIs in the order of [Client.ENIs].
func compareENIs(a, b ENI) int {
	place := func(e ENI) int {
		if e.Index == UnknownIndex {
			return math.MaxInt
		}
		return e.Index
	}
	last := func(e ENI) int {
		if e.Boot {
			return 0
		}
		return 1
	}
	return cmp.Or(last(a)-last(b), cmp.Compare(a.Card, b.Card), cmp.Compare(place(a), place(b)),
		cmp.Compare(a.MAC, b.MAC))
}

// readENIValues reads the values of eniKeys for the ENIs with these MACs. Most ENIs have only half of the keys, so
// readENIValues first reads the list of an ENI's keys. AWS does not document whether this list contains the keys for
// prefixes, such as ipv4-prefix. So readENIValues always requests the keys for prefixes.
func (c *Client) readENIValues(ctx context.Context, macs []string) []eniValues {
	all, has := make([]eniValues, len(macs)), make([][]string, len(macs))
	doConcurrently(len(macs), func(i int) {
		all[i] = eniValues{mac: strings.TrimSuffix(macs[i], "/"), text: make(map[string]string)}
		listing, err := c.metadata.readPath(ctx, macsPath+all[i].mac+"/")
		if has[i] = strings.Fields(listing); !isAbsent(err) { // absent: EC2 has detached the ENI, so this is no error
			all[i].err = err
		}
	})
	type key struct {
		of   *eniValues
		name string
	}
	var present []key
	for i := range all {
		for _, name := range eniKeys {
			if strings.HasSuffix(name, "-prefix") || slices.Contains(has[i], name) {
				present = append(present, key{&all[i], name})
			}
		}
	}
	var mu sync.Mutex
	doConcurrently(len(present), func(i int) {
		k, name := present[i].of, present[i].name
		mu.Lock()
		failed := k.err != nil
		mu.Unlock()
		if failed {
			return // the method ENIs will omit this ENI, so the other keys of the ENI do not matter
		}
		text, err := c.metadata.readPath(ctx, macsPath+k.mac+"/"+name)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			k.text[name] = text
		case !isAbsent(err):
			k.err = err
		}
	})
	return all
}

// doConcurrently calls a function with each number from 0 to n-1, in at most metadataReads goroutines. More goroutines
// would be slower: Go needs a tenth of a request's time to enlarge the stack of a new goroutine.
func doConcurrently(n int, do func(int)) {
	var wg sync.WaitGroup
	var begun atomic.Int64
	for range min(n, metadataReads) {
		wg.Go(func() {
			for i := int(begun.Add(1)); i <= n; i = int(begun.Add(1)) {
				do(i - 1)
			}
		})
	}
	wg.Wait()
}

// eniValues are the values of one ENI's metadata keys.
type eniValues struct {
	mac  string
	text map[string]string
	err  error // why a key cannot be read, or why its value is invalid
}

// toENI converts the values to an ENI. If metadata does not have the ENI's ID yet, the result has no ID.
//
// If an ENI was attached while the instance ran, metadata first shows the device number 0 (amazon-ec2-net-utils,
// lib/lib.sh). So toENI accepts 0 only for the boot ENI, whose MAC is bootMAC. The boot ENI may have another number:
// SageMaker HyperPod launches instances whose boot ENI has the number 1 (aws/amazon-vpc-cni-k8s#3753).
func (k *eniValues) toENI(bootMAC string) (ENI, error) {
	e := ENI{
		ID:             k.text["interface-id"],
		MAC:            k.mac,
		Index:          k.numberAt("device-number", UnknownIndex),
		Boot:           k.mac == bootMAC,
		Card:           k.numberAt("network-card", k.numberAt("network-card-index", 0)),
		Subnet:         k.text["subnet-id"],
		VPC:            k.text["vpc-id"],
		SecurityGroups: listAt(k, "security-group-ids", func(s string) (string, error) { return s, nil }),
		// the primary address is the first; other programs also rely on this order
		Addrs:        listAt(k, "local-ipv4s", ipv4),
		Prefixes:     listAt(k, "ipv4-prefix", ipv4Prefix),
		IPv6Addrs:    listAt(k, "ipv6s", ipv6),
		IPv6Prefixes: listAt(k, "ipv6-prefix", ipv6Prefix),
		CIDR:         firstOrZero(listAt(k, "subnet-ipv4-cidr-block", ipv4CIDR)),
		IPv6CIDR:     firstOrZero(listAt(k, "subnet-ipv6-cidr-blocks", ipv6CIDR)),
		VPCIPv6CIDRs: listAt(k, "vpc-ipv6-cidr-blocks", ipv6CIDR),
		VPCCIDRs: uniqueValues(append(
			listAt(k, "vpc-ipv4-cidr-block", ipv4CIDR), // the primary one
			listAt(k, "vpc-ipv4-cidr-blocks", ipv4CIDR)...)),
	}
	if e.Index == 0 && !e.Boot {
		e.Index = UnknownIndex
	}
	if e.ID != "" {
		k.recordError("interface-id", checkID("eni-", e.ID))
	}
	return e, k.err
}

// numberAt returns the number that is the value of the key, or defaultValue if metadata does not have the key.
func (k *eniValues) numberAt(key string, defaultValue int) int {
	text, ok := k.text[key]
	if !ok {
		return defaultValue
	}
	n, err := strconv.ParseUint(text, 10, 15)
	k.recordError(key, err)
	return int(n)
}

// listAt parses each line of the key's value. If metadata does not have the key, listAt returns nil.
func listAt[T any](k *eniValues, key string, parse func(string) (T, error)) []T {
	all, err := parseAll(parse, strings.Fields(k.text[key]))
	k.recordError(key, err)
	return all
}

// recordError sets k.err to an error about the key. It ignores nil, and all errors after the first.
func (k *eniValues) recordError(key string, err error) {
	if err != nil && k.err == nil {
		k.err = fmt.Errorf("EC2 metadata %s: %w", metadataPath+macsPath+k.mac+"/"+key, err)
	}
}

func firstOrZero[T any](list []T) (v T) {
	if len(list) > 0 {
		v = list[0]
	}
	return v
}
