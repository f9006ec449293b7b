// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package aws is this suite's client for Amazon EC2 and for the instance metadata service. It converts their answers to
// its own types: ENIs with their addresses and prefixes, subnets, VPCs, and limits of instance types. Only this package
// and the acceptance test import the AWS SDK.
//
// Each method of a [Client] asks one question or makes one change. The method's comment names the EC2 call that the
// method makes. The method returns the whole answer, even if the answer has several pages. Methods never poll. The
// caller decides what to do after an error. A Client has no state except the identity of the instance.
//
// The error of a call to EC2 is an [*Error]. Most of these errors match one of the sentinel errors of this package
// ([ErrThrottled], [ErrSubnetFull] and so on). The error of a request to the metadata service is a [*MetadataError].
// For both types, [Hint] returns what an operator can do.
//
// [Client.ENIs] asks metadata, and [Client.DescribeENIs] asks EC2: this package does not mix their answers. Metadata
// lags behind EC2. It may lack new ENIs and addresses, and still show deleted ones.
//
// This package parses all addresses in the answers, so that no other package gets addresses as strings.
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

// Options are the options of a Client. In production, use the zero value.
type Options struct {
	// EC2URL is the endpoint of the EC2 API. If it is empty, $AWS_ENDPOINT_URL_EC2 or $AWS_ENDPOINT_URL names the
	// endpoint. If neither is set, or if $AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true, the region determines the
	// endpoint, and $AWS_USE_FIPS_ENDPOINT and $AWS_USE_DUALSTACK_ENDPOINT choose its variant. The region is
	// $AWS_REGION, $AWS_DEFAULT_REGION, or the instance's region.
	EC2URL string

	// MetadataURL is the endpoint of the instance metadata service. If MetadataURL is empty,
	// $AWS_EC2_METADATA_SERVICE_ENDPOINT names the endpoint. If this variable is not set, the endpoint is
	// http://169.254.169.254, or http://[fd00:ec2::254] if $AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE is IPv6.
	MetadataURL string

	// HTTP makes the requests to EC2 and to metadata. With an HTTPClient of its own, a test can answer these requests
	// without a socket. If HTTP is nil, the Client uses HTTP clients of the SDK. The SDK's HTTP client for EC2 heeds
	// $HTTPS_PROXY, $NO_PROXY and $AWS_CA_BUNDLE.
	HTTP HTTPClient

	// Attempts is the maximum number of attempts of one call to EC2. If it is 0, the maximum is 2. The Client waits for
	// up to one second before the second attempt. This attempt can succeed if the account's token bucket was empty only
	// for a moment. If EC2 throttles for longer, the caller must make all processes of the node wait. If the other
	// processes did not wait, they would take all new tokens from the bucket.
	Attempts int

	// Jitter returns a random duration less than d, for the wait before another attempt. If Jitter is nil, the Client
	// uses rand.N. A simulation of many nodes gives each node a Jitter with a different seed.
	Jitter func(d time.Duration) time.Duration
}

// An HTTPClient makes HTTP requests, as *http.Client does.
type HTTPClient interface {
	Do(*http.Request) (*http.Response, error)
}

// A Client makes requests to EC2 and the metadata service. Goroutines may share a Client.
type Client struct {
	options  Options
	ec2      *ec2.Client // no code may convert this field to an interface: call.go says why
	metadata *metadata
	invalid  error    // why an environment variable for EC2 is invalid; nil: all are valid
	chosen   []string // the environment variables that choose the endpoint of EC2

	mu       sync.Mutex
	identity *Instance
}

// New returns a Client. New makes no request. If an environment variable has an invalid value, each call that needs the
// variable fails.
func New(o Options) *Client {
	o.Attempts = cmp.Or(o.Attempts, 2)
	if o.Jitter == nil {
		o.Jitter = rand.N[time.Duration]
	}
	m := newMetadata(o)
	s, chosen, err := sdkOptions(o, m)
	return &Client{options: o, metadata: m, ec2: ec2.New(s), invalid: err, chosen: chosen}
}

// Jitter returns a random duration less than d: see [Options].
func (c *Client) Jitter(d time.Duration) time.Duration { return c.options.Jitter(d) }

// sdkOptions returns the SDK's options except the region, which the function named call sets. It also returns the names
// of the environment variables that choose the endpoint.
func sdkOptions(o Options, m *metadata) (ec2.Options, []string, error) {
	s := ec2.Options{
		Credentials: credentialsOf(m),
		APIOptions: []func(*middleware.Stack) error{awsmiddleware.AddUserAgentKeyValue("cni-ipvlan-vpc-k8s",
			release.Version())},
	}
	chosen, err := processEnv.setEndpoint(&s, o)
	do := o.HTTP
	if do == nil {
		var e error
		do, e = ec2HTTP()
		err = cmp.Or(err, e)
	}
	s.HTTPClient = wholeBodyClient{checkedClient{do}}
	return s, chosen, err
}

// ec2HTTP returns the SDK's HTTP client for EC2. The client heeds $HTTPS_PROXY and $NO_PROXY. If $AWS_CA_BUNDLE names a
// file, the client trusts the certificates in this file instead of the system's certificates.
func ec2HTTP() (HTTPClient, error) {
	do, bundle := awshttp.NewBuildableClient(), processEnv.firstSet("AWS_CA_BUNDLE")
	if bundle.value == "" {
		return do, nil
	}
	cas, err := bundle.certificates()
	return do.WithTransportOptions(func(t *http.Transport) { t.TLSClientConfig.RootCAs = cas }), err
}

// region returns the AWS region from the environment variables. If they name no region, it returns the instance's
// region.
func (c *Client) region(ctx context.Context) (string, error) {
	if r := processEnv.regionVariable().value; r != "" {
		return r, nil
	}
	i, err := c.identityDocument(ctx)
	return i.Region, err
}
