// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

// callTimeout is the maximum duration of one call, including all its attempts. EC2 usually answers within two seconds.
const callTimeout = 10 * time.Second

var errNoAnswer = fmt.Errorf("no answer from EC2 in %v: %w", callTimeout, context.DeadlineExceeded)

// A method is a method value of *ec2.Client. The linker drops the 700 methods that no code names. But no code may
// convert *ec2.Client to an interface. The suite's tool contains package text/template, which can call any method of an
// interface value by its name. So with such a conversion, the linker would keep all methods, and the tool would be 30
// MB larger. The same happens if a type mentions both *ec2.Client and a type parameter.
type method[I, O any] = func(context.Context, *I, ...func(*ec2.Options)) (*O, error)

// call makes one EC2 call. If the EC2 call fails, call returns an *Error.
func call[I, O any](ctx context.Context, c *Client, action string, f method[I, O], in *I) (*O, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	if c.invalid != nil {
		return nil, &Error{Action: action, Err: c.invalid}
	}
	region, err := c.region(ctx)
	if err != nil {
		return nil, &Error{Action: action, Err: err}
	}
	made := attempts{changes: api.Changes(action)}
	out, err := f(ctx, in, func(o *ec2.Options) {
		o.Region, o.Retryer = region, c.retryer(ctx, action)
		made.addTo(o)
	})
	if err != nil {
		e := newError(ctx, action, err)
		e.MaybeDone, e.unsent = made.maybeDone, !made.begun
		if e.Code == "" {
			e.Endpoint, e.Chosen = endpointOf(ctx, c.ec2.Options(), region), c.chosen
		}
		return nil, e
	}
	return out, nil
}

// retryer returns the SDK's standard retryer for one call, with three changes.
//
// First, for an action with the trait [api.Once], the retryer repeats the request only if EC2 has refused the last
// attempt. If the answer was lost, a further attempt could assign more addresses that no process would know.
//
// Second, if EC2 has refused a request because of the request's timestamp, the retryer repeats the request at once.
// From EC2's answer, the SDK knows EC2's time, and signs the next attempt with this time.
//
// Third, if the next attempt would begin after the deadline of ctx, the retryer ends the call. The call then returns
// the error of the last attempt, which is more useful than a timeout.
func (c *Client) retryer(ctx context.Context, action string) sdk.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = c.options.Attempts
		o.RateLimiter = ratelimit.None // no limit for retries: only long-lived processes need one
		if api.Is(action, api.Once) {
			o.Retryables = []retry.IsErrorRetryable{
				retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes},
				retry.RetryableError{}, // if a wrong clock caused an error, the SDK marks the error as retryable
			}
		}
		o.Retryables = append(o.Retryables, retry.IsErrorRetryableFunc(func(err error) sdk.Ternary {
			if isClockRefusal(err) {
				return sdk.TrueTernary
			}
			return sdk.UnknownTernary
		}))
		o.Backoff = retry.BackoffDelayerFunc(func(attempt int, err error) (time.Duration, error) {
			d := c.Jitter(time.Second / 2 << min(attempt, 4)) // full jitter
			if isClockRefusal(err) {
				d = 0
			}
			if t, ok := ctx.Deadline(); ok && time.Until(t) < actualDelay(d, err) {
				return 0, err
			}
			return d, nil
		})
	})
}

// isClockRefusal reports whether EC2 has refused a request because of the request's timestamp. If the SDK has found
// that the clock is wrong, errors with certain codes, such as AuthFailure, become retryable (aws-sdk-go-v2 v1.48.0,
// aws/retry/middleware.go, clockSkewCodes). RequestExpired is not one of these codes. So isClockRefusal also looks for
// the code of err in clockCodes.
func isClockRefusal(err error) bool {
	if seen, ok := errors.AsType[interface {
		error
		RetryableError() bool
	}](err); ok && seen.RetryableError() {
		return true
	}
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && slices.Contains(clockCodes, api.ErrorCode())
}

// actualDelay returns how long the SDK really waits if the retryer returns the delay d. The header X-Amz-Retry-After in
// EC2's answer can make the wait up to five seconds longer (aws-sdk-go-v2 v1.48.0, aws/retry/middleware.go,
// adjustForRetryAfterHeader).
func actualDelay(d time.Duration, err error) time.Duration {
	const most = 5 * time.Second
	r, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok || r.Response == nil || r.Response.Response == nil {
		return d
	}
	ms, err := strconv.ParseInt(r.Response.Header.Get("X-Amz-Retry-After"), 10, 64)
	if err != nil || ms < 0 {
		return d
	}
	return min(max(time.Duration(min(ms, 1<<32))*time.Millisecond, d), d+most)
}

// logChange logs a change in EC2 to standard error. The log line has the request ID, because AWS's support asks for
// this ID first.
func logChange(ctx context.Context, action string, m middleware.Metadata, attrs ...any) {
	id, _ := awsmiddleware.GetRequestIDMetadata(m)
	slog.InfoContext(ctx, action, append(attrs, "request", id)...)
}
