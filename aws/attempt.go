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

// MaybeDone reports whether EC2 may have carried out the call that failed with err. EC2 may have done so if an answer
// was lost, is invalid, or is a server error. For the errors of several calls, MaybeDone returns true if EC2 may have
// carried out at least one of these calls.
//
// The SDK's error does not show whether EC2 may have carried out the call. If the answer to the first attempt was lost,
// the SDK makes a second attempt, and returns only the error of the second. Even if this error is "throttled", EC2 may
// have carried out the first attempt.
func MaybeDone(err error) bool { return anyError(err, func(e *Error) bool { return e.MaybeDone }) }

// Undone reports whether err proves that EC2 has not carried out the call. For the errors of several calls, Undone
// returns true only if EC2 has carried out none of these calls. If err contains no *Error, Undone returns false.
func Undone(err error) bool {
	return !MaybeDone(err) && anyError(err, func(*Error) bool { return true })
}

// Unsent reports whether the call failed before this process sent a request to EC2, for example because the call's
// context had already ended. EC2 has then refused nothing, so a later call may succeed. For the errors of several
// calls, Unsent returns true only if all of these calls failed before this process sent a request. An [Error] of such a
// call may have a Code: if metadata does not return the role's credentials, the Code is from metadata.
func Unsent(err error) bool {
	return Undone(err) && !anyError(err, func(e *Error) bool { return e.Code != "" && !e.unsent })
}

// attempts is a middleware of the SDK that records the attempts of one call. The SDK calls the middleware directly
// before each request. So if the SDK fails earlier, for example without credentials, the middleware records nothing.
type attempts struct {
	changes   bool // the action may change something in EC2
	begun     bool // there was an attempt
	maybeDone bool // EC2 may have carried out an attempt that failed
}

// attemptContext returns a context for an attempt of an action that may change something in EC2. The new context ends
// three seconds after ctx has ended, so that EC2's answer can still arrive. Without the answer, the caller must make
// more calls to find out what EC2 has done.
func attemptContext(ctx context.Context) (context.Context, context.CancelFunc) {
	const soon = 3 * time.Second
	attempt, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		wait := soon
		if context.Cause(ctx) == errNoAnswer { // callTimeout has passed, so an answer is very unlikely: do not wait
			wait = 0
		}
		time.AfterFunc(wait, func() { cancel(context.Cause(ctx)) })
	})
	return attempt, func() { stop(); cancel(nil) }
}

func (a *attempts) addTo(o *ec2.Options) {
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
		ctx, end = attemptContext(ctx)
		defer end()
	}
	out, m, err := next.HandleFinalize(ctx, in)
	a.maybeDone = a.maybeDone || err != nil && !isRefusal(err)
	return out, m, err
}

// isRefusal reports whether an error proves that EC2 has not carried out the request: there was no connection to EC2,
// or EC2 has refused the request. A server error proves this only if it matches ErrThrottled or ErrSubnetFull. EC2's
// documentation lists the codes of these two errors among the server errors (API, "Error codes", the table "Server
// errors").
func isRefusal(err error) bool {
	if o, ok := errors.AsType[*net.OpError](err); ok && (o.Op == "dial" || o.Op == "proxyconnect") {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true // Go verifies the certificate first, so it has not sent the request
	}
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok || api.ErrorCode() == sdkUnknown {
		return false
	}
	r, ok := errors.AsType[*awshttp.ResponseError](err)
	e := &Error{Code: api.ErrorCode(), Message: api.ErrorMessage()}
	fault := slices.Contains(serverErrors, e.Code)
	return ok && r.HTTPStatusCode() < http.StatusInternalServerError && !fault || e.Is(ErrThrottled) ||
		e.Is(ErrSubnetFull)
}
