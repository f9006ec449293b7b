// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// clockSteps sets the node's clock forward or back, by an hour or a day.
func (m *model) clockSteps() {
	if m.depth > 0 && m.keeps || m.damaged || m.locked("grow") && m.locked("collect") {
		return
	}
	m.skew(pick(m.rng, -24*time.Hour, -time.Hour, time.Hour, 24*time.Hour))
}

// skew makes all times in the registry later by d, as after a step of the node's clock back by d. The clock of a bubble
// cannot step back. In some cases, skew also removes "booted", as if an earlier release or a person had written the
// registry. The registry then does not say by which clock its times are.
func (m *model) skew(d time.Duration) {
	path := filepath.Join(m.Dir, "registry.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	must(m, err)
	var all any
	if m.damaged || json.Unmarshal(text, &all) != nil {
		return
	}
	bare := d > 0 && m.chance(30)
	if top, ok := all.(map[string]any); ok && bare {
		delete(top, "booted")
	}
	m.logf("%s the registry's times are later by %v, and it says by which clock: %v", m.clock(), d, !bare)
	m.meddled = true
	m.losses++
	text, err = json.Marshal(shifted(all, d))
	must(m, err)
	must(m, os.WriteFile(path, text, 0o600))
}

// shifted returns a JSON value with each time later by d. The zero time stays.
func shifted(v any, d time.Duration) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = shifted(x, d)
		}
	case []any:
		for i, x := range v {
			v[i] = shifted(x, d)
		}
	case string:
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil && !t.IsZero() {
			return t.Add(d).Format(time.RFC3339Nano)
		}
	}
	return v
}
