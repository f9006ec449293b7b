// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"syscall"
)

// A failed STATUS means that no ADD on the node can succeed. The runtime then reports the node as not ready, and
// Kubernetes starts no pods on it, and evicts its pods. So STATUS fails only for a lasting fault, such as a module that
// the kernel lacks. It must not fail if the node is only slow, or lacks memory for a moment.

// shortages are errors that come and go with the load of a node. They are from the kernel, and from contexts.
var shortages = []error{
	context.DeadlineExceeded, context.Canceled,
	syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ETIMEDOUT,
}

// notReadyError returns the error with which STATUS answers, or nil if the cause of err is only temporary.
func notReadyError(err error) error {
	e, ok := errors.AsType[*Error](err)
	again := ok && e.Code == CodeTryAgain
	if err == nil || !again && !slices.ContainsFunc(shortages, func(s error) bool { return errors.Is(err, s) }) {
		return err
	}
	slog.Warn("STATUS could not check everything, and has found no fault", "error", err)
	return nil
}
