// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// layers are the folders of configuration, the first of which counts where two have a
// file of one name (systemd.unit(5), networkd.conf(5)).
var layers = []string{"/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"}

// lookUp finds a file in the layers of a program's configuration. One that is empty, or a
// link to /dev/null, takes away what later layers have.
func (p *patient) lookUp(program, name string) (path string, found bool) {
	for _, layer := range layers {
		path := p.path(filepath.Join(layer, program, name))
		if fi, err := os.Stat(path); err == nil {
			return path, fi.Size() > 0 && fi.Mode().IsRegular()
		} else if to, err := os.Readlink(path); err == nil && to == os.DevNull {
			return path, false // in an image there is no such device
		}
	}
	return "", false
}

// dropIns are the files of a folder in all layers that count, by name.
func (p *patient) dropIns(program, dir string) []string {
	names := map[string]bool{}
	for _, layer := range layers {
		entries, _ := os.ReadDir(p.path(filepath.Join(layer, program, dir)))
		for _, e := range entries {
			names[e.Name()] = strings.HasSuffix(e.Name(), ".conf")
		}
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if path, ok := p.lookUp(program, filepath.Join(dir, name)); ok && names[name] {
			files = append(files, path)
		}
	}
	return files
}

// enabled tells whether a unit is started at boot: whether a target wants it, or another unit.
func (p *patient) enabled(unit string) bool {
	for _, layer := range layers {
		links, _ := filepath.Glob(p.path(filepath.Join(layer, "systemd/system/*.wants", unit)))
		if len(links) > 0 {
			return true
		}
	}
	return false
}

// runs tells whether a unit is active on this node, or will be on one of this image.
func (p *patient) runs(ctx context.Context, unit string) bool {
	if !p.systemd() {
		return p.root != "" && p.enabled(unit)
	}
	return exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", unit).Run() == nil
}

// systemd tells whether systemd runs here (sd_booted(3)), and can be asked.
func (p *patient) systemd() bool {
	_, err := os.Stat("/run/systemd/system")
	_, err2 := exec.LookPath("systemctl")
	return p.root == "" && err == nil && err2 == nil
}

// write is a fix that makes a file.
func (p *patient) write(name, text, note string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		file := p.path(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		return "wrote " + file + note, replaceFile(file, []byte(text), 0o644)
	}
}

// networkdConf are the settings of systemd-networkd that keep it off routes and rules of pods.
const networkdConf = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"

// checkNetworkd reads what systemd-networkd does with routes and rules that it has not made
// (networkd.conf(5)): by default it removes them when it starts, or configures a link anew.
func (p *patient) checkNetworkd(ctx context.Context) ([]ailment, error) {
	_, err := os.Stat(p.path("/run/systemd/netif/links"))
	if err != nil && !p.runs(ctx, "systemd-networkd.service") {
		return nil, nil
	}
	files := p.dropIns("systemd", "networkd.conf.d")
	if main, ok := p.lookUp("systemd", "networkd.conf"); ok {
		files = append([]string{main}, files...)
	}
	settings := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, "="); ok {
				settings[strings.TrimSpace(key)] = strings.ToLower(strings.TrimSpace(value))
			}
		}
	}
	var found []ailment
	for key, what := range map[string]string{"ManageForeignRoutes": "routes", "ManageForeignRoutingPolicyRules": "rules"} {
		if !slices.Contains([]string{"no", "n", "false", "f", "off", "0"}, settings[key]) {
			found = append(found, ailment{Severity: severe, About: key, Means: "systemd-networkd removes the " + what + " of pods when it starts or configures a link anew",
				Do:  "set " + key + "=no in /etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf, and restart it at a quiet time",
				fix: p.write("/etc/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf", networkdConf, ", for when systemd-networkd starts next")})
		}
	}
	slices.SortFunc(found, func(a, b ailment) int { return strings.Compare(a.About, b.About) })
	return found, nil
}

// linksRun is the folder by which cni-links.service says that it has run.
const linksRun = "/run/cni-ipvlan-vpc-k8s-links"

// netUtilsConf keeps a unit of amazon-ec2-net-utils off the ENIs of pods.
const netUtilsConf = "[Unit]\nConditionPathExists=|!" + linksRun + "\nConditionPathExists=|" + linksRun + "/%i\n"

// checkNetUtils looks whether amazon-ec2-net-utils is kept off the ENIs of pods.
func (p *patient) checkNetUtils(context.Context) ([]ailment, error) {
	var found []ailment
	for _, unit := range []string{"policy-routes@.service", "refresh-policy-routes@.service"} {
		if _, installed := p.lookUp("systemd/system", unit); !installed {
			continue
		}
		dropIn := unit + ".d/cni-ipvlan-vpc-k8s.conf"
		if _, ok := p.lookUp("systemd/system", dropIn); !ok {
			found = append(found, ailment{Severity: severe, About: unit, Means: "amazon-ec2-net-utils puts every secondary address of an ENI on the node, anew each minute: the node answers in the place of its pods",
				Do:  "install the drop-in " + dropIn + ", and run systemctl daemon-reload",
				fix: p.write("/etc/systemd/system/"+dropIn, netUtilsConf, ", for when systemd reads its units next")})
		}
	}
	_, installed := p.lookUp("systemd/system", "policy-routes@.service")
	if installed && !p.linksKnown() {
		found = append(found, ailment{Severity: severe, About: "cni-links.service", Means: "it has not run, or is not enabled: amazon-ec2-net-utils does not know which ENIs are for pods",
			Do: "where every ENI but the boot ENI is for pods: systemctl enable --now cni-links.service"})
	}
	return found, nil
}

// linksKnown tells whether cni-links.service has said which links are the system's, or will.
func (p *patient) linksKnown() bool {
	_, err := os.Stat(p.path(linksRun))
	return err == nil || p.root != "" && p.enabled("cni-links.service")
}

// checkManager looks whether NetworkManager leaves the ENIs of pods alone.
func (p *patient) checkManager(ctx context.Context) ([]ailment, error) {
	_, err := os.Stat(p.path("/run/NetworkManager"))
	if err != nil && !p.runs(ctx, "NetworkManager.service") || p.root != "" && p.enabled("cni-links.service") {
		return nil, nil
	}
	for _, f := range p.dropIns("NetworkManager", "conf.d") {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(b), "\nunmanaged-devices") {
			return nil, nil
		}
	}
	return []ailment{{Severity: severe, About: "NetworkManager", Means: "no unmanaged-devices keep it off the ENIs of pods: it gives them addresses and routes of its own",
		Do: "where every ENI but the boot ENI is for pods: systemctl enable --now cni-links.service"}}, nil
}

// checkTimers looks whether anybody collects, and refills.
func (p *patient) checkTimers(ctx context.Context) ([]ailment, error) {
	why := map[string]string{"cni-gc.timer": "leases of pods that ended without a DEL stay, and addresses and ENIs are never given back"}
	if p.config != nil && slices.ContainsFunc(p.config.Policies(), func(q lease.Policy) bool { return q.Warm.Min > 0 }) {
		why["cni-warm.path"] = "nobody refills the pools to warm.min: ADDs wait for EC2"
	}
	if p.root == "" && collectedLately() {
		delete(why, "cni-gc.timer") // by whomever
	}
	var found []ailment
	for _, unit := range slices.Sorted(maps.Keys(why)) {
		_, installed := p.lookUp("systemd/system", unit)
		if installed && p.enabled(unit) && (!p.systemd() || p.runs(ctx, unit)) {
			continue
		}
		a := ailment{Severity: severe, About: unit, Means: "it is not enabled, or not active: " + why[unit], Do: "systemctl enable --now " + unit, fix: p.enable(unit)}
		if !installed {
			a.Means, a.Do, a.fix = "it is not installed: "+why[unit], "install the package; or without systemd, run what the unit runs every 5 minutes", nil
		}
		found = append(found, a)
	}
	return found, nil
}

// collectedLately tells whether registry-gc has come to its end lately.
func collectedLately() bool {
	const lately = 30 * time.Minute // the timer runs every 5
	fi, err := os.Stat(filepath.Join(registry.Dir(), collectedMark))
	return err == nil && time.Since(fi.ModTime()) < lately
}

// enable is a fix that enables a unit, and starts it on a node that runs.
func (p *patient) enable(unit string) func(context.Context) (string, error) {
	if _, err := exec.LookPath("systemctl"); err != nil {
		return nil
	}
	args := []string{"enable", unit}
	switch {
	case p.root != "":
		args = append([]string{"--root", p.root}, args...)
	case p.systemd():
		args = append(args, "--now")
	}
	return func(ctx context.Context) (string, error) {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return "systemctl " + strings.Join(args, " "), nil
	}
}
