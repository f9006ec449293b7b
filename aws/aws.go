// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package aws is Amazon EC2 and its instance metadata service in the words of this suite. These words are ENIs, their
// addresses and prefixes, subnets, VPCs and the limits of instance types. No other package knows the AWS SDK.
//
// A method is one question or one change. A method makes the one EC2 call that its comment names (the pages of a
// describe count as one), and returns EC2's answer. It decides nothing, keeps no state except the identity of the
// instance, and never polls. The caller handles errors. Each failure of EC2 is an [*Error], which matches one of the
// sentinels of this package ([ErrThrottled], [ErrSubnetFull] and so on). Each failure of the metadata service is a
// [*MetadataError]. For both, [Hint] returns what an operator can do.
//
// Answers of EC2 and of metadata are kept apart: [Client.ENIs] asks metadata,
// [Client.DescribeENIs] asks EC2. Metadata lags behind EC2, omits ENIs, and shows deleted
// ones. What metadata shows may be used. What metadata does not show may still exist.
//
// This package parses all addresses, so no other package has addresses as strings.
package aws

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go/middleware"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
)

// Options choose where a Client finds EC2 and the metadata service. In production, use the
// zero value.
type Options struct {
	// EC2URL is the endpoint of the EC2 API. If it is empty, $AWS_ENDPOINT_URL_EC2 or $AWS_ENDPOINT_URL names the
	// endpoint. Without these, it is that of the region. The region is $AWS_REGION or $AWS_DEFAULT_REGION, or else the
	// instance's. $AWS_IGNORE_CONFIGURED_ENDPOINT_URLS makes it that of the region in any case. $AWS_USE_FIPS_ENDPOINT
	// and $AWS_USE_DUALSTACK_ENDPOINT choose among those of the region.
	EC2URL string

	// MetadataURL is the endpoint of the instance metadata service. If it is
	// empty, it is $AWS_EC2_METADATA_SERVICE_ENDPOINT or http://169.254.169.254, or
	// http://[fd00:ec2::254] if $AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE is IPv6.
	MetadataURL string

	// HTTP makes the requests to both, if it is not nil: through a proxy of the
	// caller's, or without a socket at all. If it is nil, requests to EC2 heed
	// $HTTPS_PROXY, $NO_PROXY and $AWS_CA_BUNDLE.
	HTTP HTTPClient

	// Attempts is how often a call to EC2 is made before a throttled or failed answer is
	// returned. 0 means 2. The second attempt comes up to a second later. It helps if the bucket of the account was
	// empty for a moment. A longer wait is the caller's task, which can make the other processes of the node wait, too.
	// A process that repeats by itself only takes tokens from the others.
	Attempts int

	// Jitter returns a random time of less than d, for the wait before another attempt. If it
	// is nil, that is rand.N. A simulation of many nodes gives each its own, from a seed.
	Jitter func(d time.Duration) time.Duration
}

// An HTTPClient makes HTTP requests, as *http.Client does.
type HTTPClient interface {
	Do(*http.Request) (*http.Response, error)
}

// A Client asks EC2 and the metadata service. Goroutines may share it.
type Client struct {
	options  Options
	ec2      *ec2.Client // must never become an interface; see call
	metadata *metadata
	invalid  error    // a variable of the environment about EC2 has an invalid value
	chosen   []string // the variables of the environment that choose the endpoint of EC2

	mu       sync.Mutex
	identity *Instance
}

// New returns a Client. New makes no call: each method makes its own. If a variable of the environment has an invalid
// value, each call that needs it fails.
func New(o Options) *Client {
	o.Attempts = cmp.Or(o.Attempts, 2)
	if o.Jitter == nil {
		o.Jitter = rand.N[time.Duration]
	}
	m := newMetadata(o)
	s, chosen, err := sdkOptions(o, m)
	return &Client{options: o, metadata: m, ec2: ec2.New(s), invalid: err, chosen: chosen}
}

// Jitter returns a random time of less than d: see [Options].
func (c *Client) Jitter(d time.Duration) time.Duration { return c.options.Jitter(d) }

// sdkOptions returns all options except the region, which a call determines when it needs
// it. It also returns the variables of the environment that choose the endpoint.
func sdkOptions(o Options, m *metadata) (ec2.Options, []string, error) {
	s := ec2.Options{
		Credentials: credentialsOf(m),
		APIOptions: []func(*middleware.Stack) error{awsmiddleware.AddUserAgentKeyValue("cni-ipvlan-vpc-k8s",
			release.Version())},
	}
	chosen, err := own.ec2(&s, o)
	do := o.HTTP
	if do == nil {
		var e error
		do, e = ec2HTTP()
		err = cmp.Or(err, e)
	}
	s.HTTPClient = whole{checked{do}}
	return s, chosen, err
}

// ec2HTTP returns the SDK's HTTP client for EC2, which heeds $HTTPS_PROXY and $NO_PROXY. If $AWS_CA_BUNDLE is set, its
// certificates replace the system's certificates.
func ec2HTTP() (HTTPClient, error) {
	do, bundle := awshttp.NewBuildableClient(), own.first("AWS_CA_BUNDLE")
	if bundle.value == "" {
		return do, nil
	}
	cas, err := bundle.certificates()
	return do.WithTransportOptions(func(t *http.Transport) { t.TLSClientConfig.RootCAs = cas }), err
}

// region returns the region of the environment, or else the instance's.
func (c *Client) region(ctx context.Context) (string, error) {
	if r := own.region().value; r != "" {
		return r, nil
	}
	i, err := c.document(ctx)
	return i.Region, err
}
