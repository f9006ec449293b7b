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

// MaybeDone reports whether EC2 may have carried out the call that failed with err. Either EC2's answer does not say
// so, or its answer to an attempt was lost. An error of several calls is MaybeDone if one of them is.
//
// A call has one of three outcomes: done, not done, or unknown. An error by itself does not name the outcome. The SDK
// repeats a call whose answer was lost, and returns the answer to the repetition. "Throttled" or "no such address" then
// does not prove that nothing was done.
func MaybeDone(err error) bool { return anyError(err, func(e *Error) bool { return e.MaybeDone }) }

// Undone reports whether EC2 has not carried out any of the calls that failed with err, and
// has said so. There must be at least one.
func Undone(err error) bool {
	return !MaybeDone(err) && anyError(err, func(*Error) bool { return true })
}

// attempts watches each attempt of one call. attempts is the SDK's last step before a request is sent. If an earlier
// step fails, for example without credentials, no request is sent.
type attempts struct {
	changes   bool // something in EC2
	maybeDone bool // EC2 may have carried out an attempt that failed
}

// answering returns the context of an attempt that was sent. The caller may give up, but an answer that comes soon
// after that counts. Without it, the caller does not know whether EC2 has carried out the call, and to find that out
// takes more calls.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	const soon = 3 * time.Second
	attempt, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		wait := soon
		if context.Cause(ctx) == errNoAnswer { // it was waited for long enough
			wait = 0
		}
		time.AfterFunc(wait, func() { cancel(context.Cause(ctx)) })
	})
	return attempt, func() { stop(); cancel(nil) }
}

// watch adds a to the steps of a call.
func (a *attempts) watch(o *ec2.Options) {
	o.APIOptions = append(o.APIOptions, func(s *middleware.Stack) error { return s.Finalize.Add(a, middleware.After) })
}

// ID names the step, as the SDK wants it.
func (a *attempts) ID() string { return "cni-ipvlan-vpc-k8s/attempts" }

// HandleFinalize makes one attempt.
func (a *attempts) HandleFinalize(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
	middleware.FinalizeOutput, middleware.Metadata, error,
) {
	if ctx.Err() != nil {
		return middleware.FinalizeOutput{}, middleware.Metadata{}, ctx.Err()
	}
	if a.changes {
		var end context.CancelFunc
		ctx, end = answering(ctx)
		defer end()
	}
	out, m, err := next.HandleFinalize(ctx, in)
	a.maybeDone = a.maybeDone || err != nil && !refused(err)
	return out, m, err
}

// refused reports whether the error of a request proves that EC2 has not carried it out:
// there was no connection, or EC2 has refused it. A server error proves nothing. Throttling
// and a lack of addresses are refusals, although EC2 lists them as server errors (API,
// "Error codes", the table "Server errors").
func refused(err error) bool {
	if o, ok := errors.AsType[*net.OpError](err); ok && (o.Op == "dial" || o.Op == "proxyconnect") {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true // TLS sends the request after the certificate is verified
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
