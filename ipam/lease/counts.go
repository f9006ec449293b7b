// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Counts returns a copy of c that counts each command when the command ends: see [registry.Count].
func Counts[C any](c plugin.Commands[C]) plugin.Commands[C] {
	c.Ended = func(verb string, took time.Duration, waited bool, err *types.Error) {
		registry.Count(registry.Dir(), verb, outcome(waited, err), took)
	}
	return c
}

// outcome returns how a command has ended.
func outcome(waited bool, err *types.Error) string {
	switch {
	case err == nil && waited:
		return registry.Waited
	case err == nil:
		return registry.OK
	case err.Code == plugin.CodeTryAgain:
		return registry.Again
	case err.Code == plugin.CodeRefused:
		return registry.Refused
	}
	return registry.Failed
}
