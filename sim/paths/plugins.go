// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// An executor executes plugins for libcni on an instance.
type executor struct {
	invoke.DefaultExec
	instance *vpcsim.Instance
}

// ExecPlugin runs a plugin.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	c := exec.CommandContext(ctx, path)
	c.Env = append(environ, e.instance.Env()...)
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := e.instance.Do(c.Run)
	var refusal types.Error
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case json.Unmarshal(stdout.Bytes(), &refusal) == nil:
		return nil, fmt.Errorf("%w (CNI error %d)", &refusal, refusal.Code)
	}
	return nil, fmt.Errorf("%w: %s%s", err, &stdout, &stderr)
}
