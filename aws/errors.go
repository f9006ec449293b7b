// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// What a failure means to the caller. An [*Error] answers to one of these, or to
// none; which codes mean which is in the table of codes.go.
var (
	ErrThrottled     = errors.New("EC2 throttles")                   // do not call this action again for some seconds
	ErrTransient     = errors.New("EC2 cannot do it now")            // the same call may succeed in a moment
	ErrENIFull       = errors.New("ENI is full")                     // it has all the addresses it can have: try another ENI
	ErrInstanceFull  = errors.New("instance is full")                // it has all the ENIs it can have
	ErrSubnetFull    = errors.New("subnet is full")                  // or too fragmented for a prefix: addresses, or another subnet
	ErrQuota         = errors.New("quota is used up")                // the account can have no more ENIs in this region
	ErrIndexTaken    = errors.New("device index is taken")           // try the next one
	ErrCardFull      = errors.New("network card is full")            // it has no such device index: try another card
	ErrInUse         = errors.New("in use")                          // still attached, or an address that somebody else has
	ErrNotFound      = errors.New("not found")                       // gone, or so new that EC2 does not show it yet
	ErrNotRunning    = errors.New("instance is not running")         // it is stopping: give up
	ErrTooManyGroups = errors.New("too many security groups")        // a mistake in the configuration
	ErrTokenUsed     = errors.New("client token was used otherwise") // begin again with a new token
	ErrDenied        = errors.New("EC2 refuses")                     // and will until an operator changes something
	ErrNoMetadata    = errors.New("EC2 metadata is not available")   // nobody answers at its address
)

// An Error is a call to EC2 that failed. It matches, with errors.Is, the sentinel
// of its code; an Error without a code matches [ErrTransient] if EC2 was not
// reached.
type Error struct {
	Action    string // for example AssignPrivateIpAddresses
	Code      string // for example InsufficientFreeAddressesInSubnet; empty if EC2 has not answered
	Message   string // EC2's
	RequestID string // for AWS's support
	Err       error  // the error beneath; without a Code it says what happened instead
}

// Error reads like a path: the action, EC2's code, EC2's message, the request.
func (e *Error) Error() string {
	if e.Code == "" {
		return e.Action + ": " + clip(e.Err.Error())
	}
	text := e.Action + ": " + clip(e.Code)
	// UnauthorizedOperation carries a kilobyte for sts:DecodeAuthorizationMessage.
	if m, _, _ := strings.Cut(e.Message, "Encoded authorization failure message"); m != "" {
		text += ": " + clip(strings.TrimSpace(m))
	}
	if e.RequestID != "" {
		text += " (request " + clip(e.RequestID) + ")"
	}
	return text
}

// clip shortens what others have written to what a person can read in an event of a pod.
func clip(s string) string {
	const most = 600
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// Unwrap returns the error beneath, for example a *MetadataError if there were no
// credentials, or context.DeadlineExceeded.
func (e *Error) Unwrap() error { return e.Err }

// Is says whether target is the sentinel of the error's code.
func (e *Error) Is(target error) bool {
	m := e.meaning()
	return m.is != nil && m.is == target
}

// unknown is what the SDK puts in place of a code or a message that is not there.
const unknown = "UnknownError"

// newError makes an Error of the SDK's, which buries what happened under what it
// tried.
func newError(ctx context.Context, action string, err error) *Error {
	e := &Error{Action: action, Err: err}
	if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		e.RequestID = r.RequestID
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() != unknown {
		e.Code, e.Message = api.ErrorCode(), strings.TrimPrefix(api.ErrorMessage(), unknown)
		return e
	}
	if ctx.Err() != nil {
		e.Err = whyDone(ctx)
	} else if m, ok := errors.AsType[*MetadataError](err); ok {
		e.Err = m
	} else if i, ok := errors.AsType[impostor](err); ok {
		e.Err = i
	} else if s, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		e.Err = unreached{s.Err}
	}
	return e
}

// whyDone is context.Canceled or context.DeadlineExceeded, which callers ask for, and
// the cause if it says more, which people read.
func whyDone(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// unreached is why a request did not get to EC2, or its answer not to us.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

// meaning finds the row of the error.
func (e *Error) meaning() meaning {
	if e.Code != "" {
		for _, m := range meanings {
			if m.matches(e.Code, e.Message) {
				return m
			}
		}
	}
	if m, ok := errors.AsType[*MetadataError](e.Err); ok && m.isRole() {
		return noRole
	}
	if _, ok := errors.AsType[unreached](e.Err); ok {
		return noAnswer
	}
	if _, ok := errors.AsType[impostor](e.Err); ok {
		return notEC2
	}
	if r, ok := errors.AsType[*awshttp.ResponseError](e.Err); ok && r.HTTPStatusCode() >= http.StatusInternalServerError {
		return serverFault
	}
	return meaning{}
}

// Hint is what an operator can do about err, or "" if there is nothing to say. It
// looks for the EC2 or metadata error in err's chain.
func Hint(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		if hint := e.meaning().hint; hint != "" {
			return strings.ReplaceAll(hint, "{action}", e.denied())
		}
	}
	if e, ok := errors.AsType[*MetadataError](err); ok {
		return e.hint()
	}
	return ""
}

// denied is the action that the role may not do: the one that was called, or one that
// comes with it, such as ec2:CreateTags with a CreateNetworkInterface. EC2 says it in one
// of two ways, or in both.
func (e *Error) denied() string {
	for _, before := range []string{"not authorized to perform: ec2:", "allows the ec2:"} {
		_, rest, _ := strings.Cut(e.Message, before)
		end := strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if end > 0 {
			return clip(rest[:end])
		}
	}
	return e.Action
}
