// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

// A Bucket limits how often an action may be called.
type Bucket = api.Bucket

// Unfiltered is the name of a second bucket of DescribeNetworkInterfaces, as a key in [Config.Buckets]. Requests with
// neither a filter nor a page size take tokens only from this second bucket.
const Unfiltered = "DescribeNetworkInterfaces, unfiltered and unpaginated"

// unfilteredBucket is EC2's default for the bucket [Unfiltered] (API: "Request throttling for the Amazon EC2 API").
var unfilteredBucket = Bucket{Size: 50, Refill: 10}

// A bucket is the state of a Bucket.
type bucket struct {
	Bucket
	tokens   int
	refilled time.Time // the time of the last refill
}

// newBuckets returns nil if the Config does not throttle.
func newBuckets(c Config) map[string]*bucket {
	if !c.Throttle {
		return nil
	}
	buckets := map[string]*bucket{Unfiltered: fullBucket(unfilteredBucket)}
	for action := range actions {
		buckets[action] = fullBucket(api.BucketOf(action))
	}
	for name, b := range c.Buckets {
		buckets[name] = fullBucket(b)
	}
	return buckets
}

func fullBucket(b Bucket) *bucket { return &bucket{b, b.Size, time.Now()} }

// Tokens has EC2's default buckets for one account in one region, for tests that need no [Sim]. The zero value is ready
// for use.
type Tokens struct{ buckets map[string]*bucket }

// Take takes a token for a call of the action, and reports whether there was one. Take computes from [time.Now] how
// many tokens EC2 has added.
func (t *Tokens) Take(action string) bool {
	if t.buckets == nil {
		t.buckets = map[string]*bucket{}
	}
	if t.buckets[action] == nil {
		t.buckets[action] = fullBucket(api.BucketOf(action))
	}
	return t.buckets[action].takeToken(time.Now())
}

func isBucket(name string) bool {
	_, ok := actions[name]
	return ok || name == Unfiltered
}

// takeToken takes a token for the request, or refuses the request.
func (s *Sim) takeToken(f form) error {
	if s.buckets == nil || s.buckets[bucketOf(f)].takeToken(time.Now()) {
		return nil
	}
	return &refusal{"RequestLimitExceeded", tooManyRequests}
}

func bucketOf(f form) string {
	if f["Action"] == "DescribeNetworkInterfaces" && !f.hasPrefix("Filter.") && f["MaxResults"] == "" {
		return Unfiltered
	}
	return f["Action"]
}

// takeToken takes a token, and reports whether there was one. EC2 adds Refill tokens each second. Tokens that do not
// fit into the bucket are lost (API: "Request throttling for the Amazon EC2 API": "they are discarded").
func (b *bucket) takeToken(now time.Time) bool {
	seconds := now.Sub(b.refilled) / time.Second
	b.refilled = b.refilled.Add(seconds * time.Second)
	b.tokens = min(b.Size, b.tokens+int(seconds)*b.Refill)
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}

// tooManyRequests is EC2's message if a bucket is empty. The HTTP status of this error is 503 (API: "Error codes", the
// table "Server errors").
const tooManyRequests = "Request limit exceeded."
