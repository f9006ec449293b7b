// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"strings"
	"time"
)

// A Bucket limits how often an action may be called. Each request takes a token, even if it fails, and each second adds
// some.
type Bucket struct {
	Size   int // maximum and initial number of tokens
	Refill int // tokens per second
}

// Unfiltered is the name, in Config.Buckets, of the second bucket of DescribeNetworkInterfaces. Requests with neither a
// filter nor a page size use it.
const Unfiltered = "DescribeNetworkInterfaces, unfiltered and unpaginated"

// The buckets of EC2: one for each action, per account and region, shared by all callers (API: "Request throttling for
// the Amazon EC2 API", the tables of "Request token limits").
var (
	reading  = Bucket{100, 20} // actions not in named that begin with Describe
	changing = Bucket{50, 5}   // all other actions
	named    = map[string]Bucket{
		"AssignIpv6Addresses":             {100, 5},
		"AssignPrivateIpAddresses":        {100, 5},
		"CreateNetworkInterface":          {100, 5},
		"CreateTags":                      {100, 10},
		"DeleteNetworkInterface":          {100, 5},
		"ModifyNetworkInterfaceAttribute": {100, 5},
		Unfiltered:                        {50, 10},
	}
)

// A bucket is the state of a Bucket.
type bucket struct {
	Bucket
	tokens int
	since  time.Time // the time of the last refill
}

// newBuckets returns the buckets of a Config; nil if it has none.
func newBuckets(c Config) map[string]*bucket {
	if !c.Throttle {
		return nil
	}
	all := map[string]Bucket{}
	for action := range actions {
		all[action] = changing
		if strings.HasPrefix(action, "Describe") {
			all[action] = reading
		}
	}
	maps.Copy(all, named)
	maps.Copy(all, c.Buckets)
	now, buckets := time.Now(), map[string]*bucket{}
	for name, b := range all {
		buckets[name] = &bucket{b, b.Size, now}
	}
	return buckets
}

// isBucket reports whether there is a bucket of this name.
func isBucket(name string) bool {
	_, ok := actions[name]
	return ok || name == Unfiltered
}

// throttled takes a token for the request, and refuses the request if there is none. A refused request takes none.
func (s *Sim) throttled(f form) error {
	if s.buckets == nil || s.buckets[bucketOf(f)].take(time.Now()) {
		return nil
	}
	return &refusal{"RequestLimitExceeded", tooManyRequests}
}

func bucketOf(f form) string {
	if f["Action"] == "DescribeNetworkInterfaces" && !f.any("Filter.") && f["MaxResults"] == "" {
		return Unfiltered
	}
	return f["Action"]
}

// take takes a token. Tokens are added once per second. Those that do not fit into the bucket are lost ("they are
// discarded").
func (b *bucket) take(now time.Time) bool {
	seconds := now.Sub(b.since) / time.Second
	b.since = b.since.Add(seconds * time.Second)
	b.tokens = min(b.Size, b.tokens+int(seconds)*b.Refill)
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}

// tooManyRequests is EC2's message for a caller without a token. It is a server error with the status 503 (API: "Error
// codes", the table "Server errors").
const tooManyRequests = "Request limit exceeded."
