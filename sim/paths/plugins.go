// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// plugins executes plugins for libcni, on the instance.
type plugins struct{ *vpcsim.Instance }

// ExecPlugin runs a plugin.
func (p plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	c := exec.CommandContext(ctx, path)
	c.Env = append(environ, p.Env()...)
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := p.Do(c.Run)
	var refusal types.Error
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case json.Unmarshal(stdout.Bytes(), &refusal) == nil:
		return nil, fmt.Errorf("%w (CNI error %d)", &refusal, refusal.Code)
	}
	return nil, fmt.Errorf("%w: %s%s", err, &stdout, &stderr)
}

// FindInPath finds a plugin.
func (p plugins) FindInPath(plugin string, dirs []string) (string, error) {
	for _, dir := range dirs {
		if path := filepath.Join(dir, plugin); isFile(path) {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("no plugin %s in %v: run make build", plugin, dirs)
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// Decode reads a plugin's answer to VERSION.
func (p plugins) Decode(b []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(b)
}
