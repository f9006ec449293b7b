// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
)

// Error codes of the CNI specification 1.1.0, section "Error".
const (
	CodeIO           = types.ErrIOFailure            // 5: state on disk cannot be read or written
	CodeDecode       = types.ErrDecodingFailure      // 6: standard input cannot be decoded
	CodeInvalid      = types.ErrInvalidNetworkConfig // 7: the configuration cannot work
	CodeTryAgain     = types.ErrTryAgainLater        // 11: the same call may succeed later
	CodeNotAvailable = types.ErrPluginNotAvailable   // 50: STATUS: no ADD can succeed

	// CodeRefused means that an ADD has failed because the pod asks for something that is not permitted. In the
	// specification, codes from 100 on are for plugins.
	CodeRefused = 100

	// CodeHeld means that another node has the address that the pod has chosen. That node may release the address soon.
	// An ADD gets this code from the program that asks EC2, and no runtime sees it.
	CodeHeld = 101
)

// ModulesHint is the hint for an error that names missing modules of the kernel.
const ModulesHint = "load the missing modules when the node boots, see modules-load.d(5). On some distributions, " +
	"the modules are in the package linux-modules-extra or kernel-modules-extra"

// An Error is an error that has CNI's code for the runtime, and a hint for the operator. It may be anywhere in a chain
// of wrapped errors. The runtime gets the code and the hint of the outermost Error.
type Error struct {
	Code uint
	Hint string // what the operator can do; the "details" of CNI's error
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error that wraps the error of fmt.Errorf.
func Errorf(code uint, hint, format string, args ...any) error {
	return &Error{code, hint, fmt.Errorf(format, args...)}
}

// encode turns err into CNI's error. The code is that of the outermost *Error. Without an *Error, the code is 11 ("try
// again later") if a context has ended, and otherwise 999 ("internal error").
func encode(verb string, err error) *types.Error {
	if err == nil {
		return nil
	}
	code, hint := uint(types.ErrInternal), ""
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code = CodeTryAgain
	}
	if e, ok := errors.AsType[*Error](err); ok {
		code, hint = e.Code, e.Hint
	}
	msg := err.Error()
	if verb == "DEL" {
		// containerd treats a DEL error that contains "not found" as success, and then forgets the sandbox (go-cni,
		// Remove).
		msg = strings.ReplaceAll(msg, "not found", "absent")
	}
	return types.NewError(code, excerpt.Message(msg), excerpt.Message(hint))
}

// withTrace adds the trace of the call to the details of the call's error. It adds nothing if the details already have
// the trace, from a plugin that this plugin has called.
func withTrace(err *types.Error, id string) *types.Error {
	if id == "" || strings.Contains(err.Details, id) {
		return err
	}
	traced := *err
	traced.Details = strings.TrimPrefix(err.Details+"; trace "+id, "; ")
	return &traced
}

// printError prints an error as the specification requires it: with the key cniVersion, which types.Error lacks.
func printError(w io.Writer, cniVersion string, err *types.Error) {
	b, fault := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cniVersion, err}, "", "    ")
	if fault != nil {
		panic(fault) // no error: the struct has only strings and numbers
	}
	fmt.Fprintf(w, "%s\n", b)
}

func printResult(w io.Writer, r types.Result) *types.Error {
	b, err := formatResult(r)
	if err != nil {
		return types.NewError(CodeIO, "encode result: "+err.Error(), "")
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return types.NewError(CodeIO, "print result: "+err.Error(), "")
	}
	return nil
}
