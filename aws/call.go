// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go/middleware"
)

// callTimeout bounds one call, its attempts included. EC2 answers within a second
// or two; what takes longer than this is lost.
const callTimeout = 10 * time.Second

var errNoAnswer = fmt.Errorf("no answer from EC2 in %v: %w", callTimeout, context.DeadlineExceeded)

// untokened are the actions that take no client token and do more when they are
// done twice (API reference: AssignPrivateIpAddresses, AssignIpv6Addresses,
// AttachNetworkInterface).
var untokened = []string{"AssignPrivateIpAddresses", "AssignIpv6Addresses", "AttachNetworkInterface"}

// A method is one of *ec2.Client's, as a method value, so that the program keeps that
// method and no other of some 700. That is why *ec2.Client is nowhere an interface and
// in no type that depends on a type parameter: with text/template in the program, which
// the tool has for its help, either would make it 30 MB larger.
type method[I, O any] = func(context.Context, *I, ...func(*ec2.Options)) (*O, error)

// call makes one EC2 call. Its error is an *Error.
func call[I, O any](ctx context.Context, c *Client, action string, f method[I, O], in *I) (*O, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	region, err := c.region(ctx)
	if err != nil {
		return nil, &Error{Action: action, Err: err}
	}
	out, err := f(ctx, in, func(o *ec2.Options) {
		o.Region, o.Retryer = region, retryer(ctx, action, c.options.Attempts)
	})
	if err != nil {
		return nil, newError(ctx, action, err)
	}
	return out, nil
}

// retryer returns the SDK's standard retryer for one call, with two changes.
//
// An untokened action is repeated only when EC2 has said that it did nothing. A
// request whose answer was lost may have been carried out, and then the
// repetition gives a second batch of addresses that nobody knows of.
//
// An attempt that would begin after the deadline of ctx is not waited for: that EC2
// throttles is better to know than that time is up.
func retryer(ctx context.Context, action string, attempts int) sdk.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = attempts
		o.RateLimiter = ratelimit.None // its budget is meant for long-lived processes
		if slices.Contains(untokened, action) {
			o.Retryables = []retry.IsErrorRetryable{
				retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes},
				retry.RetryableError{}, // a clock that is wrong: the SDK has learnt by how much
			}
		}
		o.Backoff = retry.BackoffDelayerFunc(func(attempt int, err error) (time.Duration, error) {
			d := rand.N(time.Second / 2 << min(attempt, 4)) // full jitter
			if t, ok := ctx.Deadline(); ok && time.Until(t) < d {
				return 0, err
			}
			return d, nil
		})
	})
}

// changed says on standard error what a call has changed in the cloud, with the
// request ID, which is what AWS's support asks for first.
func changed(ctx context.Context, action string, m middleware.Metadata, attrs ...any) {
	id, _ := awsmiddleware.GetRequestIDMetadata(m)
	slog.InfoContext(ctx, action, append(attrs, "request", id)...)
}
