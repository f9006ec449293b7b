// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package aws is Amazon EC2 and its instance metadata service in the words of
// this suite: ENIs, their addresses and prefixes, subnets, VPCs and the limits
// of instance types. It is the only package that knows the AWS SDK.
//
// A method is one question or one change: it makes the one EC2 call that its
// comment names (the pages of a describe count as one), and returns what EC2
// answered. It decides nothing, keeps no state beyond the identity of the
// instance, and never polls. What to do about an error is the caller's business
// too: every failure of EC2 is an [*Error] that answers to one of the sentinels
// of this package ([ErrThrottled], [ErrSubnetFull] and so on), every failure of
// the metadata service a [*MetadataError], and [Hint] knows what an operator can
// do about either.
//
// What EC2 says and what metadata says are kept apart, because metadata lags
// behind EC2, forgets and remembers too much: [Client.ENIs] asks metadata,
// [Client.DescribeENIs] asks EC2. Metadata may show what is there; that it does not
// show something never means that it is gone.
//
// Addresses are parsed once, here, so that none beyond this package is a string.
package aws

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"runtime/debug"
	"sync"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go/middleware"
)

// Options choose where a Client finds EC2 and the metadata service. The zero
// value is right in production.
type Options struct {
	// EC2URL is the endpoint of the EC2 API. If it is empty, it is
	// $AWS_ENDPOINT_URL_EC2 or $AWS_ENDPOINT_URL, or else that of the region,
	// which is $AWS_REGION or $AWS_DEFAULT_REGION or else the instance's.
	EC2URL string

	// MetadataURL is the endpoint of the instance metadata service. If it is
	// empty, it is $AWS_EC2_METADATA_SERVICE_ENDPOINT or http://169.254.169.254.
	MetadataURL string

	// HTTP makes the requests to both, if it is not nil: through a proxy of the
	// caller's, or without a socket at all.
	HTTP HTTPClient

	// Attempts is how often a call to EC2 is made before a throttled or failed
	// answer is returned. It is 2 if it is 0: the second attempt, up to a second
	// later, bridges an unlucky moment of a bucket that the whole account shares.
	// Waiting longer is for the caller, who can tell the other processes of the
	// node to wait as well; a process that retries by itself only drains what
	// they all wait for.
	Attempts int
}

// An HTTPClient makes HTTP requests, as *http.Client does.
type HTTPClient interface {
	Do(*http.Request) (*http.Response, error)
}

// A Client asks EC2 and the metadata service. Many goroutines may use it.
type Client struct {
	options  Options
	ec2      *ec2.Client // never to become an interface; see call
	metadata *metadata

	mu       sync.Mutex
	identity *Instance
}

// New returns a Client. It makes no call: a program pays for what it asks.
func New(o Options) *Client {
	o.EC2URL = cmp.Or(o.EC2URL, os.Getenv("AWS_ENDPOINT_URL_EC2"), os.Getenv("AWS_ENDPOINT_URL"))
	o.MetadataURL = cmp.Or(o.MetadataURL, os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "http://169.254.169.254")
	o.Attempts = cmp.Or(o.Attempts, 2)
	m := newMetadata(o)
	return &Client{options: o, metadata: m, ec2: ec2.New(sdkOptions(o, m))}
}

// sdkOptions are all but the region, which a call looks for when it is needed.
func sdkOptions(o Options, m *metadata) ec2.Options {
	s := ec2.Options{
		Credentials: credentialsOf(m),
		APIOptions:  []func(*middleware.Stack) error{awsmiddleware.AddUserAgentKeyValue("cni-ipvlan-vpc-k8s", version())},
	}
	if o.EC2URL != "" {
		s.BaseEndpoint = &o.EC2URL
	}
	s.HTTPClient = whole{genuine{awshttp.NewBuildableClient()}}
	if o.HTTP != nil {
		s.HTTPClient = whole{genuine{o.HTTP}}
	}
	return s
}

// region is the region of the environment, or else the instance's.
func (c *Client) region(ctx context.Context) (string, error) {
	if r := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")); r != "" {
		return r, nil
	}
	i, err := c.document(ctx)
	return i.Region, err
}

// version is the version of the program's module, as EC2 sees it in the user agent.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
