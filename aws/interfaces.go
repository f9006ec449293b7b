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

// macsPath is the path of the list of the ENIs' MACs. Below this path, each MAC has the keys of its ENI (EC2 user
// guide, "Instance metadata categories").
const macsPath = "network/interfaces/macs/"

// eniKeys are the metadata keys of an ENI. Metadata omits keys without a value: local-ipv4s if an ENI has only IPv6,
// and ipv4-prefix for most ENIs.
var eniKeys = []string{
	"interface-id", "device-number", "subnet-id", "vpc-id", "security-group-ids",
	"network-card", "network-card-index", // other programs read network-card; the user guide has network-card-index
	"local-ipv4s", "ipv4-prefix", "subnet-ipv4-cidr-block", "vpc-ipv4-cidr-block", "vpc-ipv4-cidr-blocks",
	"ipv6s", "ipv6-prefix", "subnet-ipv6-cidr-blocks", "vpc-ipv6-cidr-blocks",
}

// ENIs asks metadata for the ENIs of this instance: the boot ENI, then all other ENIs, sorted by card, device index and
// MAC. ENIs with an unknown index are the last of their card.
//
// The method omits an ENI that metadata does not describe completely. Metadata does not have the ID of a new ENI for
// some seconds after its attachment: this is no error. If a key cannot be read or is invalid, the method writes a
// warning to standard error. A partly read ENI would look like an ENI without addresses. If no ENI can be read because
// of such errors, the method returns the errors.
func (c *Client) ENIs(ctx context.Context) ([]ENI, error) {
	primary, err := c.metadata.read(ctx, "mac")
	if err != nil {
		return nil, err
	}
	listing, err := c.metadata.read(ctx, macsPath)
	if err != nil {
		return nil, err
	}
	var enis []ENI
	var errs []error
	for _, k := range c.readENIs(ctx, strings.Fields(listing)) {
		e, err := k.eni(primary)
		switch {
		case err != nil:
			errs = append(errs, err)
		case e.ID != "":
			enis = append(enis, e)
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("EC2 metadata %s: %w", metadataPath+macsPath, whyDone(ctx))
	}
	if len(enis) == 0 && len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for _, err := range errs {
		slog.WarnContext(ctx, "the metadata service does not describe an ENI completely: the ENI is ignored",
			"because", err)
	}
	slices.SortFunc(enis, byPlace)
	return enis, nil
}

// byPlace compares two ENIs for sorting: the boot ENI is first, and the other ENIs are in the order of card, device
// index and MAC.
func byPlace(a, b ENI) int {
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

// readENIs reads the keys of all the ENIs. Most ENIs have only half of eniKeys. A request for a missing key costs as
// much as any other request. So readENIs first asks for the list of each ENI's keys. AWS does not document whether this
// list names the keys of prefixes. So readENIs asks each ENI for these keys in any case.
func (c *Client) readENIs(ctx context.Context, macs []string) []keys {
	all, has := make([]keys, len(macs)), make([][]string, len(macs))
	atOnce(len(macs), func(i int) {
		all[i] = keys{mac: strings.TrimSuffix(macs[i], "/"), text: make(map[string]string)}
		listing, err := c.metadata.read(ctx, macsPath+all[i].mac+"/")
		if has[i] = strings.Fields(listing); !isAbsent(err) { // if the list is absent, the ENI is no longer attached
			all[i].err = err
		}
	})
	type key struct {
		of   *keys
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
	atOnce(len(present), func(i int) {
		k, name := present[i].of, present[i].name
		mu.Lock()
		failed := k.err != nil
		mu.Unlock()
		if failed {
			return // the ENI is omitted, so its other keys do not matter
		}
		text, err := c.metadata.read(ctx, macsPath+k.mac+"/"+name)
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

// atOnce calls do with each number below n, in metadataReads goroutines. The stack of a goroutine grows during its
// first request to metadata, and this growth takes a tenth of the request's time. So each goroutine makes several
// requests.
func atOnce(n int, do func(int)) {
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

// keys are the values of one ENI's metadata keys. Metadata may lack some keys.
type keys struct {
	mac  string
	text map[string]string
	err  error // why a key cannot be read, or why its value is invalid
}

// eni makes an ENI from the keys. The ENI has no ID if metadata does not have its ID yet.
//
// If an ENI was attached while the instance ran, its device number is 0 until metadata has the true one
// (amazon-ec2-net-utils, lib/lib.sh). The number 0 is true only for the boot ENI, whose MAC is the argument primary.
// But the boot ENI may have another number: SageMaker HyperPod launches instances whose boot ENI has the number 1
// (aws/amazon-vpc-cni-k8s#3753).
func (k *keys) eni(primary string) (ENI, error) {
	e := ENI{
		ID:             k.text["interface-id"],
		MAC:            k.mac,
		Index:          k.number("device-number", UnknownIndex),
		Boot:           k.mac == primary,
		Card:           k.number("network-card", k.number("network-card-index", 0)),
		Subnet:         k.text["subnet-id"],
		VPC:            k.text["vpc-id"],
		SecurityGroups: list(k, "security-group-ids", func(s string) (string, error) { return s, nil }),
		Addrs:          list(k, "local-ipv4s", ipv4), // the primary address is first: other programs also rely on this
		Prefixes:       list(k, "ipv4-prefix", ipv4Prefix),
		IPv6Addrs:      list(k, "ipv6s", ipv6),
		IPv6Prefixes:   list(k, "ipv6-prefix", ipv6Prefix),
		CIDR:           first(list(k, "subnet-ipv4-cidr-block", ipv4CIDR)),
		IPv6CIDR:       first(list(k, "subnet-ipv6-cidr-blocks", ipv6CIDR)),
		VPCIPv6CIDRs:   list(k, "vpc-ipv6-cidr-blocks", ipv6CIDR),
		VPCCIDRs: unique(append(
			list(k, "vpc-ipv4-cidr-block", ipv4CIDR), // the primary one
			list(k, "vpc-ipv4-cidr-blocks", ipv4CIDR)...)),
	}
	if e.Index == 0 && !e.Boot {
		e.Index = UnknownIndex
	}
	if e.ID != "" {
		k.fail("interface-id", checkID("eni-", e.ID))
	}
	return e, k.err
}

// number returns the number at the key, or the argument absent if metadata does not have the key.
func (k *keys) number(key string, absent int) int {
	text, ok := k.text[key]
	if !ok {
		return absent
	}
	n, err := strconv.ParseUint(text, 10, 15)
	k.fail(key, err)
	return int(n)
}

// list parses each line of the value at the key. If metadata does not have the key, list returns nothing.
func list[T any](k *keys, key string, parse func(string) (T, error)) []T {
	all, err := parseAll(parse, strings.Fields(k.text[key]))
	k.fail(key, err)
	return all
}

// fail records an error about a key in k, if it is the first one.
func (k *keys) fail(key string, err error) {
	if err != nil && k.err == nil {
		k.err = fmt.Errorf("EC2 metadata %s: %w", metadataPath+macsPath+k.mac+"/"+key, err)
	}
}

// first returns the first of the values, or the zero value if there are none.
func first[T any](list []T) (v T) {
	if len(list) > 0 {
		v = list[0]
	}
	return v
}
