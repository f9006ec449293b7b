// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// networkdConf are the settings with which systemd-networkd does not remove routes and rules of pods.
const networkdConf = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"

// networkdDropIn is the file that gets networkdConf.
const networkdDropIn = "/etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf"

// foreignKeys has the settings of networkdConf. If a setting is not "no", systemd-networkd removes objects of other
// programs. The value in the map is the word for these objects. The default of each setting is "yes".
var foreignKeys = map[string]string{"ManageForeignRoutes": "routes", "ManageForeignRoutingPolicyRules": "rules"}

// checkNetworkd checks that systemd-networkd does not remove routes and rules of other programs (networkd.conf(5)). By
// default, systemd-networkd removes them when it starts, or when it configures a link again.
func (p *Node) checkNetworkd(ctx context.Context) ([]Finding, error) {
	_, err := os.Stat(p.pathOf("/run/systemd/netif/links"))
	if err != nil && !p.isActive(ctx, "systemd-networkd.service") {
		return nil, nil
	}
	settings, deciding, err := p.networkdSettings()
	if err != nil {
		return nil, err
	}
	var found []Finding
	applyOnce := p.networkdFix(ctx)
	for key, what := range foreignKeys {
		s := settings[key]
		if s.isNo() {
			continue
		}
		f := Finding{Severity: severe, About: key, Means: "systemd-networkd removes the " + what +
			" of pods when it starts or configures a link again",
			fix: func(context.Context) (string, error) { return applyOnce() }}
		file := networkdDropIn
		if s.isLater() {
			file, f.fix = s.file, nil
		}
		f.Do = "set " + key + "=no in " + file + ". When both ManageForeignRoutes and " +
			"ManageForeignRoutingPolicyRules are no, restart systemd-networkd"
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.About, b.About) })
	if len(found) > 0 || p.root != "" {
		return found, nil
	}
	return unreadSettings(deciding)
}

// A networkdSetting is the value of a key, in lower case, and the file from which systemd-networkd takes this value.
type networkdSetting struct{ value, file string }

func (s networkdSetting) isNo() bool {
	return slices.Contains([]string{"no", "n", "false", "f", "off", "0"}, s.value)
}

// isLater reports whether systemd-networkd reads the setting's file after networkdDropIn.
func (s networkdSetting) isLater() bool {
	return filepath.Base(filepath.Dir(s.file)) == "networkd.conf.d" &&
		filepath.Base(s.file) > filepath.Base(networkdDropIn)
}

// networkdSettings returns the settings of systemd-networkd by key, and the files that have one of foreignKeys.
func (p *Node) networkdSettings() (settings map[string]networkdSetting, deciding []string, err error) {
	files := p.dropIns("systemd", "networkd.conf.d")
	if main, ok := p.lookUp("systemd", "networkd.conf"); ok {
		files = append([]string{main}, files...)
	}
	settings = map[string]networkdSetting{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, nil, err
		}
		if strings.Contains(string(b), "ManageForeign") {
			deciding = append(deciding, f)
		}
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, "="); ok {
				settings[strings.TrimSpace(key)] = networkdSetting{strings.ToLower(strings.TrimSpace(value)), f}
			}
		}
	}
	return settings, deciding, nil
}

// NetworkdRemovalError returns an error if the settings make systemd-networkd remove routes or rules of pods at its
// next start. The error names the file with the setting.
func NetworkdRemovalError() error { return (&Node{}).networkdRemovalError() }

func (p *Node) networkdRemovalError() error {
	settings, _, err := p.networkdSettings()
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(foreignKeys)) {
		switch s := settings[key]; {
		case s.isNo():
		case s.file == "":
			return fmt.Errorf("no file has %s=no, so systemd-networkd removes %s of pods when it starts", key,
				foreignKeys[key])
		default:
			return fmt.Errorf("%s has %s=%s, so systemd-networkd removes %s of pods when it starts", s.file, key,
				s.value, foreignKeys[key])
		}
	}
	return nil
}

// networkdRestart is the command that makes a running systemd-networkd read its settings. With our settings, routes and
// rules of pods stay.
const networkdRestart = "systemctl try-restart systemd-networkd.service"

// unreadSettings looks for files that were written after the start of systemd-networkd. It returns a finding about the
// first of them in the argument's order.
func unreadSettings(files []string) ([]Finding, error) {
	file, err := cli.UnreadByNetworkd(files)
	if err != nil || file == "" {
		return nil, err
	}
	return []Finding{{Severity: severe, About: file,
		Means: "this file was written after systemd-networkd had started, so systemd-networkd may not have read it. " +
			"If systemd-networkd has not read the file, it removes the routes and rules of pods when it configures " +
			"a link",
		Do: "restart systemd-networkd: " + networkdRestart + ". The routes and rules of pods stay",
		fix: func(ctx context.Context) (string, error) {
			return networkdRestart, execRestart(ctx)
		}}}, nil
}

// networkdFix returns a fix that writes our settings for systemd-networkd, and restarts a running systemd-networkd. If
// a file overrides our settings, the fix returns an error, and restarts nothing. Several findings share the fix, so it
// does its work only at the first call.
func (p *Node) networkdFix(ctx context.Context) func() (string, error) {
	write := p.fileFix(networkdDropIn, networkdConf, "")
	return sync.OnceValues(func() (string, error) {
		did, err := write(ctx)
		if err != nil {
			return "", err
		}
		if err := p.networkdRemovalError(); err != nil {
			return "", fmt.Errorf("%s, but did not restart systemd-networkd: %w", did, err)
		}
		if !p.hasSystemd() {
			return did + ", which systemd-networkd reads at its next start", nil
		}
		return did + ", and called " + networkdRestart, execRestart(ctx)
	})
}

func execRestart(ctx context.Context) error {
	args := strings.Fields(networkdRestart)
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", networkdRestart, err, out)
	}
	return nil
}
