// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

const (
	metadataPath = "/latest/meta-data/"

	// metadataReads is how many metadata requests are under way at once. The
	// service limits connections and packets per second (EC2 user guide,
	// "Retrieve instance metadata", "Query throttling").
	metadataReads = 8

	// metadataAttempts, each at most 250 ms for the connection and 500 ms for the
	// answer, tell a machine outside of EC2 in about a second that it is one.
	metadataAttempts = 3
)

// A MetadataError is a request to the metadata service that failed.
type MetadataError struct {
	URL    string // of the service
	Path   string // what was asked for, for example /latest/meta-data/mac
	Status int    // HTTP status of the answer; 0 if there was none
	Err    error
}

func (e *MetadataError) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("EC2 metadata is not available at %s: is this an EC2 instance? (%v)", e.URL, e.Err)
	}
	if e.Status < http.StatusBadRequest {
		return fmt.Sprintf("EC2 metadata %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("EC2 metadata %s: %d %s", e.Path, e.Status, http.StatusText(e.Status))
}

// Unwrap returns the error beneath.
func (e *MetadataError) Unwrap() error { return e.Err }

// Is says whether target is [ErrNoMetadata] and nobody has answered.
func (e *MetadataError) Is(target error) bool { return target == ErrNoMetadata && e.Status == 0 }

func (e *MetadataError) hint() string {
	switch e.Status {
	case 0:
		return "on EC2, look for a firewall rule in the way of " + e.URL + ", and in a container at the hop limit of metadata"
	case http.StatusForbidden:
		return "metadata is switched off: aws ec2 modify-instance-metadata-options --http-endpoint enabled"
	}
	return ""
}

// isRole says whether the instance role's credentials were asked for and are not there.
func (e *MetadataError) isRole() bool {
	return e.Status == http.StatusNotFound && strings.Contains(e.Path, "iam/security-credentials")
}

// metadata is the instance metadata service, by IMDSv2 alone: with a session token,
// fetched once for the process. The SDK would fall back to requests without one, which
// an instance that is set up well refuses.
type metadata struct {
	url   string
	sdk   *imds.Client
	slots chan struct{} // one for each request under way
}

func newMetadata(o Options) *metadata {
	do := o.HTTP
	if do == nil {
		do = directHTTP()
	}
	return &metadata{
		url:   o.MetadataURL,
		slots: make(chan struct{}, metadataReads),
		sdk: imds.New(imds.Options{
			Endpoint:       o.MetadataURL,
			HTTPClient:     witness{do},
			EnableFallback: sdk.FalseTernary,

			DisableDefaultMaxBackoff: true, // it puts a delay of exactly a second in place of the retryer's
			Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts = metadataAttempts
				o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) {
					return rand.N(200 * time.Millisecond), nil
				})
			}),
		}),
	}
}

// directHTTP is the SDK's HTTP client for metadata, but without a proxy: container
// runtimes often have HTTPS_PROXY and HTTP_PROXY in their environment, and no proxy
// has this instance's metadata.
func directHTTP() HTTPClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = 250 * time.Millisecond }).
		WithTransportOptions(func(t *http.Transport) {
			t.Proxy = nil
			t.ResponseHeaderTimeout = 500 * time.Millisecond
		})
}

// read returns what stands at the path below metadataPath, without the spaces around it.
func (m *metadata) read(ctx context.Context, path string) (string, error) {
	out, err := m.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(out.Content) // from memory: the SDK has read all of it
	return strings.TrimSpace(string(b)), err
}

// GetMetadata makes a request as the SDK does. It is here for the SDK's role
// credentials, whose errors are then ours too.
func (m *metadata) GetMetadata(ctx context.Context, in *imds.GetMetadataInput, o ...func(*imds.Options)) (
	out *imds.GetMetadataOutput, err error) {
	err = m.try(ctx, metadataPath+strings.TrimPrefix(in.Path, "/"), func(ctx context.Context) error {
		out, err = m.sdk.GetMetadata(ctx, in, o...)
		return err
	})
	return out, err
}

// try makes a request by f and says why it failed.
func (m *metadata) try(ctx context.Context, path string, f func(context.Context) error) error {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return fmt.Errorf("EC2 metadata %s: %w", path, whyDone(ctx))
	}
	seen := new(MetadataError)
	err := f(context.WithValue(ctx, seenKey{}, seen))
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("EC2 metadata %s: %w", path, whyDone(ctx))
	}
	seen.URL, seen.Path = m.url, path
	if seen.Err == nil {
		seen.Err = err
	}
	return seen
}

// A witness remembers how the last request of a call ended. The SDK does not tell:
// when it cannot get a token, its error has the text of the cause but does not
// unwrap to it, be it a status, a refused connection or the caller's deadline.
type witness struct{ HTTPClient }

type seenKey struct{} // of the *MetadataError that a witness writes to

func (w witness) Do(r *http.Request) (*http.Response, error) {
	resp, err := w.HTTPClient.Do(r)
	if seen, ok := r.Context().Value(seenKey{}).(*MetadataError); ok {
		seen.Err, seen.Status = err, 0
		if err == nil {
			seen.Status = resp.StatusCode
		}
	}
	return resp, err
}

// isAbsent says whether metadata has answered that it has no such key.
func isAbsent(err error) bool {
	e, ok := errors.AsType[*MetadataError](err)
	return ok && e.Status == http.StatusNotFound
}
