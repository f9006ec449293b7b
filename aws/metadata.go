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
	"os"
	"strconv"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	metadataPath = "/latest/meta-data/"
	tokenPath    = "/latest/api/token"

	// metadataReads is the maximum number of concurrent metadata requests of a Client. The service limits connections
	// and packets per second (EC2 user guide, "Retrieve instance metadata", "Query throttling").
	metadataReads = 8

	// silentAttempts is the maximum number of attempts of a request that gets no answer. Each attempt waits at most a
	// second for the connection and a second for the answer. A quarter of a second would be too short when a runtime
	// starts all pods of a node at once.
	silentAttempts = 3

	// maxMetadata is the maximum size of an answer in bytes. The largest answer of metadata is the user data, which has
	// at most 16 KB (EC2 user guide, "Run commands at launch").
	maxMetadata = 256 << 10

	// busyAttempts is the maximum number of attempts of a request to which the service answers "not now" (see isBusy).
	// The service wants callers to back off exponentially (EC2 user guide, "Query throttling"). All attempts together
	// take one to three seconds.
	busyAttempts = 7
)

// A MetadataError is a failed request to the metadata service.
type MetadataError struct {
	URL    string // the URL of the service
	Path   string // the path that the caller wants, for example /latest/meta-data/mac
	Status int    // HTTP status of the answer; 0 if there was none
	Token  bool   // the SDK's request for the session token failed, so the SDK has not requested Path
	Err    error
}

func (e *MetadataError) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("EC2 metadata is not available at %s: is this an EC2 instance? (%v)", e.URL, e.Err)
	}
	if e.Status < http.StatusBadRequest {
		return fmt.Sprintf("EC2 metadata %s: %v", e.Path, e.Err)
	}
	status := fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))
	if e.Token {
		return fmt.Sprintf("EC2 metadata %s: the service gives no session token (IMDSv2): PUT %s: %s",
			e.Path, tokenPath, status)
	}
	return fmt.Sprintf("EC2 metadata %s: %s", e.Path, status)
}

func (e *MetadataError) Unwrap() error { return e.Err }

// Is reports whether e matches target. If there was no answer, e matches [ErrNoMetadata]. If the answer was "not now"
// (see isBusy), e matches [ErrTransient].
func (e *MetadataError) Is(target error) bool {
	return target == ErrNoMetadata && e.Status == 0 || target == ErrTransient && isBusy(e.Status)
}

// isBusy reports whether the HTTP status means "not now": the same request can succeed later.
func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

func (e *MetadataError) hint() string {
	switch e.Status {
	case 0:
		return "on EC2, look for a firewall rule that blocks " + e.URL +
			". In a container, raise the hop limit of metadata: run " +
			modifyMetadata + "--http-put-response-hop-limit 2"
	case http.StatusForbidden:
		return "metadata is switched off. To switch it on, run " + modifyMetadata + "--http-endpoint enabled"
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		if e.Token {
			return "this program needs IMDSv2, and the server at " + e.URL + " lacks IMDSv2. So this server is not " +
				"EC2's. If it is a proxy, such as kube2iam, the proxy must let requests of the node itself pass"
		}
	case http.StatusTooManyRequests:
		return "the metadata service limits the requests of this instance per second. Find out which program of the " +
			"instance asks so often"
	}
	return ""
}

// modifyMetadata is the command that changes the metadata options (EC2 user guide, "Modify instance metadata options
// for existing instances").
const modifyMetadata = "aws ec2 modify-instance-metadata-options --instance-id ID "

// isMissingRole reports whether the SDK has requested the role's credentials, and metadata has none.
func (e *MetadataError) isMissingRole() bool {
	return e.Status == http.StatusNotFound && !e.Token && strings.Contains(e.Path, "iam/security-credentials")
}

// metadata is a client of the instance metadata service. All requests use IMDSv2: they have a session token, which a
// process requests once. A well-configured instance refuses requests without a token.
type metadata struct {
	url   string
	sdk   *imds.Client
	slots chan struct{} // has one element for each running request

	invalid error // why an environment variable for metadata is invalid; nil: all are valid
}

func newMetadata(o Options) *metadata {
	do := o.HTTP
	if do == nil {
		do = directHTTP()
	}
	at, err := o.MetadataURL, error(nil)
	if at == "" {
		at, err = processEnv.metadataURL()
	}
	return &metadata{
		url:     at,
		invalid: err,
		slots:   make(chan struct{}, metadataReads),
		sdk: imds.New(imds.Options{
			Endpoint:       at,
			HTTPClient:     recorder{do},
			EnableFallback: sdk.FalseTernary,

			// without this option, the SDK would ignore the delay that Retryer returns, and always wait one second
			DisableDefaultMaxBackoff: true,
			Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts = busyAttempts
				o.RateLimiter = ratelimit.None // no limit for retries: only long-lived processes need one
				o.Retryables = append(o.Retryables,
					retry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}}})
				o.Backoff = retry.BackoffDelayerFunc(metadataBackoff)
			}),
		}),
	}
}

// metadataBackoff returns how long to wait before the next attempt. The last attempt failed with err. If there must be
// no further attempt, metadataBackoff returns err.
func metadataBackoff(attempts int, err error) (time.Duration, error) {
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && isBusy(r.HTTPStatusCode()) {
		d := min(50*time.Millisecond<<attempts, time.Second)
		return d/2 + rand.N(d/2), nil
	}
	if attempts >= silentAttempts {
		return 0, err
	}
	return rand.N(200 * time.Millisecond), nil
}

// directHTTP returns the SDK's HTTP client for metadata. The client ignores HTTPS_PROXY and HTTP_PROXY. Container
// runtimes often have these variables, but a proxy cannot ask for the metadata of this instance.
func directHTTP() HTTPClient {
	patience := metadataTimeout()
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = patience }).
		WithTransportOptions(func(t *http.Transport) {
			t.Proxy = nil
			t.ResponseHeaderTimeout = patience
		})
}

// metadataTimeout returns how long an attempt waits for the connection, and then for the answer:
// $AWS_METADATA_SERVICE_TIMEOUT seconds, as in the AWS CLI and other SDKs, or by default one second.
func metadataTimeout() time.Duration {
	seconds, err := strconv.Atoi(os.Getenv("AWS_METADATA_SERVICE_TIMEOUT"))
	if err != nil || seconds < 1 {
		return time.Second
	}
	return time.Duration(seconds) * time.Second
}

// readPath returns the value of a path below metadataPath, without white space around it.
func (m *metadata) readPath(ctx context.Context, path string) (string, error) {
	out, err := m.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(out.Content) // cannot fail, because the SDK has read the whole content into memory
	return strings.TrimSpace(string(b)), err
}

// GetMetadata makes a request with the SDK's client of metadata. The SDK also calls GetMetadata to get the role's
// credentials. So an error about these credentials is a *MetadataError, too.
func (m *metadata) GetMetadata(ctx context.Context, in *imds.GetMetadataInput, o ...func(*imds.Options)) (
	out *imds.GetMetadataOutput, err error) {
	err = m.doRequest(ctx, metadataPath+strings.TrimPrefix(in.Path, "/"), func(ctx context.Context) error {
		out, err = m.sdk.GetMetadata(ctx, in, o...)
		return err
	})
	return out, err
}

// doRequest calls the function f, which must make a request with the given context. If the request fails, doRequest
// returns a *MetadataError, or an error that says why ctx is done.
func (m *metadata) doRequest(ctx context.Context, path string, f func(context.Context) error) error {
	if m.invalid != nil {
		return m.invalid
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return fmt.Errorf("EC2 metadata %s: %w", path, doneError(ctx))
	}
	seen := new(MetadataError)
	err := f(context.WithValue(ctx, seenKey{}, seen))
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !isBusy(seen.Status) {
		return fmt.Errorf("EC2 metadata %s: %w", path, doneError(ctx))
	}
	seen.URL, seen.Path = m.url, path
	if seen.Err == nil {
		seen.Err = err
	}
	if ctx.Err() != nil { // metadata was busy until ctx ended: the error must match ctx.Err(), too
		seen.Err = doneError(ctx)
	}
	return seen
}

// A recorder records the status or the error of the last HTTP request during a call of doRequest. The SDK's error does
// not always wrap the cause.
type recorder struct{ HTTPClient }

type seenKey struct{} // key of a *MetadataError in a context; a recorder sets the fields of this error

func (c recorder) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.HTTPClient.Do(r)
	if seen, ok := r.Context().Value(seenKey{}).(*MetadataError); ok {
		seen.Err, seen.Status, seen.Token = err, 0, r.URL.Path == tokenPath
		if err == nil {
			seen.Status = resp.StatusCode
		}
	}
	if err == nil {
		resp.Body = &bounded{resp.Body, maxMetadata}
	}
	return resp, err
}

// A bounded body returns an error after maxMetadata bytes. Without this limit, the SDK would read a body of any length
// to its end.
type bounded struct {
	io.ReadCloser
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the answer is larger than %d KiB, so it is not an answer of the metadata service",
			maxMetadata>>10)
	}
	return n, err
}

// isAbsent reports whether err means that metadata does not have the requested path.
func isAbsent(err error) bool {
	e, ok := errors.AsType[*MetadataError](err)
	return ok && e.Status == http.StatusNotFound && !e.Token
}
