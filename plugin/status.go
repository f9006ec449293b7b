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

// If STATUS fails, this means that no ADD on the node can succeed. When STATUS fails, the runtime reports the node as
// not ready. Kubernetes then starts no pods on the node, and evicts the node's pods. So STATUS fails only for a lasting
// fault, such as a module that the kernel lacks or a directory that cannot be written. If a node is only slow, or only
// lacks memory for a moment, STATUS must not fail.

// shortages are the errors that come and go with the load of a node. The kernel or a context returns these errors.
var shortages = []error{
	context.DeadlineExceeded, context.Canceled,
	syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ETIMEDOUT,
}

// notReadyError returns the error with which STATUS answers. It returns nil if the cause of err is only temporary.
func notReadyError(err error) error {
	e, ok := errors.AsType[*Error](err)
	again := ok && e.Code == CodeTryAgain
	if err == nil || !again && !slices.ContainsFunc(shortages, func(s error) bool { return errors.Is(err, s) }) {
		return err
	}
	slog.Warn("STATUS could not check everything, and has found no fault", "error", err)
	return nil
}
