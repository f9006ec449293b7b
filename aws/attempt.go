// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
)

// MaybeDone reports whether EC2 may have carried out the call that failed with err. MaybeDone returns true if the
// answer does not prove that EC2 has refused the call, or if the answer to an attempt was lost. If err contains the
// errors of several calls, MaybeDone returns true if EC2 may have carried out one of them.
//
// A call has one of three outcomes: done, not done, or unknown. An error by itself does not name the outcome. The SDK
// repeats a call whose answer was lost, and returns the answer to the repetition. If that answer is "throttled" or "no
// such address", EC2 may still have carried out the first attempt.
func MaybeDone(err error) bool { return anyError(err, func(e *Error) bool { return e.MaybeDone }) }

// Undone reports whether EC2 has certainly carried out none of the calls that failed with err. If err contains no
// *Error, Undone returns false.
func Undone(err error) bool {
	return !MaybeDone(err) && anyError(err, func(*Error) bool { return true })
}

// Unsent reports whether no request of the calls that failed with err has reached EC2. For example, the context had
// ended before. Then EC2 has refused nothing. A code in the error usually shows that EC2 has answered. But an error
// about the role's credentials has a code from metadata, and Unsent ignores this code.
func Unsent(err error) bool {
	return Undone(err) && !anyError(err, func(e *Error) bool { return e.Code != "" && !e.unsent })
}

// attempts is a middleware of the SDK that watches each attempt of one call. The SDK runs it last, before it sends the
// request. If an earlier middleware fails, for example because there are no credentials, the SDK sends no request.
type attempts struct {
	changes   bool // the action may change something in EC2
	begun     bool // there was an attempt
	maybeDone bool // EC2 may have carried out an attempt that failed
}

// answering returns the context for an attempt of an action that may change something. When ctx ends, the attempt waits
// three more seconds for EC2's answer. Without the answer, the caller does not know whether EC2 has carried out the
// call, and needs more calls to find out.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	const soon = 3 * time.Second
	attempt, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		wait := soon
		if context.Cause(ctx) == errNoAnswer { // the call has already waited for callTimeout
			wait = 0
		}
		time.AfterFunc(wait, func() { cancel(context.Cause(ctx)) })
	})
	return attempt, func() { stop(); cancel(nil) }
}

// watch adds the receiver to the middleware of a call.
func (a *attempts) watch(o *ec2.Options) {
	o.APIOptions = append(o.APIOptions, func(s *middleware.Stack) error { return s.Finalize.Add(a, middleware.After) })
}

// ID returns the name of the middleware. The SDK requires this method.
func (a *attempts) ID() string { return "cni-ipvlan-vpc-k8s/attempts" }

// HandleFinalize makes one attempt.
func (a *attempts) HandleFinalize(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
	middleware.FinalizeOutput, middleware.Metadata, error,
) {
	if ctx.Err() != nil {
		return middleware.FinalizeOutput{}, middleware.Metadata{}, ctx.Err()
	}
	a.begun = true
	if a.changes {
		var end context.CancelFunc
		ctx, end = answering(ctx)
		defer end()
	}
	out, m, err := next.HandleFinalize(ctx, in)
	a.maybeDone = a.maybeDone || err != nil && !refused(err)
	return out, m, err
}

// refused reports whether an error proves that EC2 has not carried out the request. The proof is that there was no
// connection, or that EC2 has refused the request. A server error proves nothing. Throttling and a lack of addresses
// are refusals, although EC2 lists them as server errors (API, "Error codes", the table "Server errors").
func refused(err error) bool {
	if o, ok := errors.AsType[*net.OpError](err); ok && (o.Op == "dial" || o.Op == "proxyconnect") {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true // TLS verifies the certificate before it sends the request
	}
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok || api.ErrorCode() == unknown {
		return false
	}
	r, ok := errors.AsType[*awshttp.ResponseError](err)
	e := &Error{Code: api.ErrorCode(), Message: api.ErrorMessage()}
	fault := slices.Contains(serverErrors, e.Code)
	return ok && r.HTTPStatusCode() < http.StatusInternalServerError && !fault || e.Is(ErrThrottled) ||
		e.Is(ErrSubnetFull)
}
