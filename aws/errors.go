// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"unicode"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// The sentinel errors say what an error of EC2 means for the caller. An [*Error] matches at most one sentinel error.
// The table in codes.go maps EC2's codes to sentinel errors.
var (
	// the caller must wait some seconds before it calls this action again
	ErrThrottled = errors.New("EC2 throttles")
	ErrTransient = errors.New("EC2 cannot do it now") // the same call may succeed soon
	// the ENI has no room for more addresses: try another ENI
	ErrENIFull      = errors.New("ENI is full")
	ErrInstanceFull = errors.New("instance is full") // no room for more ENIs
	// the subnet has no free address, or no free block for a prefix: ask for addresses instead of prefixes, or try
	// another subnet
	ErrSubnetFull = errors.New("subnet is full")
	// the account can have no more ENIs in this region
	ErrQuota      = errors.New("quota is used up")
	ErrIndexTaken = errors.New("device index is taken") // try another index
	// the card has no such device index: try another card
	ErrCardFull = errors.New("network card is full")
	// the ENI is still attached, or another ENI has the address
	ErrInUse = errors.New("in use")
	// the object is deleted, or so new that EC2 does not show it yet
	ErrNotFound      = errors.New("not found")
	ErrNotRunning    = errors.New("instance is not running")  // the instance is stopping: give up
	ErrTooManyGroups = errors.New("too many security groups") // a mistake in the configuration
	// a mistake in the configuration, or in a pod's request
	ErrNoGroup   = errors.New("no such security group in this VPC")
	ErrTokenUsed = errors.New("client token was used for other parameters") // begin again with a new token
	// the same call fails until an operator changes something
	ErrDenied     = errors.New("EC2 refuses")
	ErrNoMetadata = errors.New("EC2 metadata is not available") // no answer from the metadata service
)

// An Error is a failed call to EC2. With errors.Is, it matches the sentinel error that belongs to its Code. Without a
// Code, it matches [ErrTransient] if the request did not reach EC2, or if the answer is not from EC2. It matches
// [ErrDenied] if the instance has no role.
type Error struct {
	Action    string // for example AssignPrivateIpAddresses
	Code      string // for example InsufficientFreeAddressesInSubnet; empty if EC2 has not answered
	Message   string // EC2's message
	RequestID string // for AWS's support
	MaybeDone bool   // EC2 may have carried out the call: see the function MaybeDone
	unsent    bool   // this process has sent no request to EC2: a Code is then from metadata
	Err       error  // the cause

	Endpoint string   // the URL of EC2; empty if there is a Code
	Chosen   []string // the environment variables that chose Endpoint; empty if the region chose it
}

func (e *Error) Error() string {
	if e.Code == "" {
		return e.Action + ": " + clipText(e.Err.Error())
	}
	text := e.Action + ": " + clipText(e.Code)
	if m, _, _ := strings.Cut(e.Message, encodedStart); m != "" {
		text += ": " + clipText(strings.TrimSpace(m))
	}
	if e.RequestID != "" {
		text += " (request " + clipText(e.RequestID) + ")"
	}
	return text
}

// encodedStart is the text before the encoded part of EC2's message. The STS action sts:DecodeAuthorizationMessage
// decodes this part.
const encodedStart = "Encoded authorization failure message"

// Brief returns EC2's message, shortened, and without the encoded part. If this text replaces the Message of an Error,
// Hint still returns the same hint.
func (e *Error) Brief() string {
	m, _, is := strings.Cut(e.Message, encodedStart)
	if m = clipText(m); is {
		m += encodedStart
	}
	return m
}

// clipText shortens a text from AWS to a length that people can read in an event of a pod.
func clipText(s string) string { return limitText(s, 600) }

// limitText returns the text. It cuts a text of more than "most" bytes to at most "most" bytes, and appends "...".
func limitText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// Unwrap returns the cause, for example context.DeadlineExceeded, or a *MetadataError if there were no credentials.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel error that e matches.
func (e *Error) Is(target error) bool {
	m := e.meaning()
	return m.sentinel != nil && m.sentinel == target
}

// maxMessage is the maximum length in bytes of a stored code or message. Each call of errors.Is compares the code and
// the message with the table in codes.go.
const maxMessage = 8 << 10

// sdkUnknown is the SDK's value for a missing code or message.
const sdkUnknown = "UnknownError"

// newError makes an Error from the SDK's error, which wraps the cause in several layers.
func newError(ctx context.Context, action string, err error) *Error {
	e := &Error{Action: action, Err: err}
	if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		e.RequestID = r.RequestID
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() != sdkUnknown {
		e.Code, e.Message = limitText(api.ErrorCode(), maxMessage), limitText(strings.TrimPrefix(api.ErrorMessage(),
			sdkUnknown), maxMessage)
		return e
	}
	if ctx.Err() != nil {
		e.Err = doneError(ctx)
	} else if m, ok := errors.AsType[*MetadataError](err); ok {
		e.Err = m
	} else if i, ok := errors.AsType[invalidAnswer](err); ok {
		e.Err = i
	} else if s, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		e.Err = unreached{s.Err}
	}
	return e
}

// doneError returns an error that says why ctx is done. It matches ctx.Err(), and its text contains the cause of ctx.
func doneError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// An unreached error says why a request did not reach EC2, or why EC2's answer did not reach this process.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

// anyError reports whether the function "has" returns true for at least one *Error in the tree of err. errors.As would
// find only the first *Error.
func anyError(err error, has func(*Error) bool) bool {
	if e, ok := err.(*Error); ok && has(e) {
		return true
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return anyError(err.Unwrap(), has)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(err.Unwrap(), func(err error) bool { return anyError(err, has) })
	}
	return false
}

// NotAllowed reports whether a call failed because the instance role lacks the permission, or because the instance has
// no role. An error may match [ErrDenied] for other reasons, such as a wrong clock, wrong credentials or a closed
// account.
func NotAllowed(err error) bool {
	return anyError(err, func(e *Error) bool { return slices.Contains(unauthorizedCodes, e.Code) || e.hasNoRole() })
}

// Unreached reports whether a call failed because EC2 has not answered.
func Unreached(err error) bool {
	return anyError(err, func(e *Error) bool { return e.Code == "" && e.Endpoint != "" })
}

// Stops reports whether err means that EC2 throttles or does not answer. A process that can do its work later then
// sends no further call. Each further call would count against the limit of all nodes, or could take ten seconds.
func Stops(err error) bool { return errors.Is(err, ErrThrottled) || Unreached(err) }

// meaning returns the row of the table in codes.go that matches the error. If no row matches, the meaning follows from
// the error's cause.
func (e *Error) meaning() meaning {
	if e.Code != "" {
		for _, m := range meanings {
			if m.matches(e.Code, e.Message) {
				return m
			}
		}
	}
	if e.hasNoRole() {
		return noRole
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](e.Err); ok {
		return noTrust
	}
	if d, ok := errors.AsType[*net.DNSError](e.Err); ok && d.IsNotFound {
		return noName
	}
	if _, ok := errors.AsType[unreached](e.Err); ok {
		return noAnswer
	}
	if e.Endpoint != "" && errors.Is(e.Err, errNoAnswer) {
		return meaning{hint: noAnswer.hint}
	}
	if _, ok := errors.AsType[invalidAnswer](e.Err); ok {
		return notEC2
	}
	if r, ok := errors.AsType[*awshttp.ResponseError](e.Err); ok &&
		r.HTTPStatusCode() >= http.StatusInternalServerError {
		return serverFault
	}
	if e.Code != "" {
		return unknownCode
	}
	return meaning{}
}

// hasNoRole reports whether the call failed because the instance has no role.
func (e *Error) hasNoRole() bool {
	m, ok := errors.AsType[*MetadataError](e.Err)
	return ok && m.isMissingRole()
}

// Hint returns what an operator can do about err, or "" if Hint does not know err. Hint knows the errors of EC2 and
// metadata, and the errors about environment variables with invalid values. err may wrap such an error.
func Hint(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		if hint := e.meaning().hint; hint != "" {
			return strings.ReplaceAll(hint, "{action}", e.deniedAction()) + e.endpointHint()
		}
	}
	if e, ok := errors.AsType[*MetadataError](err); ok {
		return e.hint()
	}
	if _, ok := errors.AsType[*envError](err); ok {
		return hintEnv
	}
	return ""
}

// endpointHint returns the end of a hint: the endpoint, and the variables or the region that determined it. It returns
// "" if the endpoint cannot be the cause of the error.
func (e *Error) endpointHint() string {
	if e.Endpoint == "" || e.meaning().sentinel != ErrTransient && !errors.Is(e.Err, errNoAnswer) {
		return ""
	}
	by := "the region"
	if len(e.Chosen) > 0 {
		by = strings.Join(e.Chosen, " and ")
	}
	return "; the endpoint is " + e.Endpoint + ", because of " + by
}

// deniedAction returns the action for which the role lacks the permission. The denied action may differ from the action
// of the call: CreateNetworkInterface also needs CreateTags. EC2's message names the denied action directly after one
// of two phrases.
func (e *Error) deniedAction() string {
	for _, before := range []string{"not authorized to perform: ec2:", "allows the ec2:"} {
		_, rest, _ := strings.Cut(e.Message, before)
		inName := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
		if action := strings.TrimSuffix(rest, strings.TrimLeftFunc(rest, inName)); action != "" {
			return clipText(action)
		}
	}
	return e.Action
}
