// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	cloudConfig  = "/etc/cloud/cloud.cfg"
	cloudDropIns = "/etc/cloud/cloud.cfg.d"
	cloudUser    = "/var/lib/cloud/instance/cloud-config.txt" // the user data, which overrides all files

	cloudInitDropIn = cloudDropIns + "/99-cni-ipvlan-vpc-k8s.cfg"
)

// cloudInitConf are the settings with which cloud-init configures only the boot ENI.
const cloudInitConf = "updates:\n  network:\n    when: [boot-new-instance]\ndatasource:\n  Ec2:\n    " +
	"apply_full_imds_network_config: false\n"

// hotplugMeans is the consequence of hotplug.
const hotplugMeans = "With hotplug, cloud-init gives the node all addresses of each ENI that EC2 attaches later. The " +
	"node then answers instead of its pods"

// checkCloudInit checks that cloud-init does not configure the ENIs of pods (cloud-init, "Events and updates" and
// "Amazon EC2"). With apply_full_imds_network_config, cloud-init configures all ENIs at the first boot. With hotplug,
// cloud-init configures each ENI that is attached later.
func (p *Node) checkCloudInit(context.Context) ([]Finding, error) {
	if !p.hasFile(cloudConfig) || p.hasFile("/etc/cloud/cloud-init.disabled") {
		return nil, nil
	}
	dropIns, err := filepath.Glob(p.pathOf(cloudDropIns + "/*.cfg")) // sorted by name
	if err != nil {
		return nil, err
	}
	c, err := readCloudSettings(append([]string{p.pathOf(cloudConfig)}, dropIns...)...)
	if err != nil {
		return nil, err
	}
	user, err := readCloudSettings(p.pathOf(cloudUser))
	if err != nil {
		return nil, err
	}
	if user.hotplug == "on" {
		return []Finding{{Severity: severe, About: cloudUser,
			Means: "the user data turns on the hotplug of cloud-init. " + hotplugMeans,
			Do:    "remove hotplug from the key \"updates\" of the user data, and launch the node again"}}, nil
	}
	c.hotplug = cmp.Or(user.hotplug, c.hotplug)
	a := Finding{About: cloudDropIns, Do: "install the drop-in " + cloudInitDropIn,
		fix: p.fileFix(cloudInitDropIn, cloudInitConf, "")}
	switch {
	case c.hotplug == "on":
		a.Severity = severe
		a.Means = "a file turns on the hotplug of cloud-init, in the key \"updates\". " + hotplugMeans
	case c.hotplug == "":
		a.Severity = warning
		a.Means = "no file turns off the hotplug of cloud-init, and some releases turn it on. " + hotplugMeans
	case c.full != "false":
		a.Severity = warning
		a.Means = "at the first boot of an instance, cloud-init gives the node all addresses of the ENIs with which " +
			"EC2 launched the instance (apply_full_imds_network_config)"
	default:
		return nil, nil
	}
	return []Finding{a}, nil
}

func (p *Node) hasFile(name string) bool {
	_, err := os.Stat(p.pathOf(name))
	return err == nil
}

// cloudSettings are the settings about ENIs in the files of cloud-init. A later file overrides an earlier one.
type cloudSettings struct {
	hotplug string // "on" or "off"; "": no file sets it
	full    string // apply_full_imds_network_config
}

// readCloudSettings reads the settings from the files, and ignores files that do not exist.
func readCloudSettings(files ...string) (c cloudSettings, _ error) {
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
		c.addFile(string(b))
	}
	return c, nil
}

// addFile adds the settings in the text of one file. It does not parse YAML, but finds the top-level key above each
// line. Under the key "updates", it looks only for words, because YAML allows several forms of a list.
func (c *cloudSettings) addFile(text string) {
	top, updates, said := "", "", false
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimRight(line, " \r\n"); line == "" {
			continue
		}
		if line[0] != ' ' && line[0] != '-' {
			top, _, _ = strings.Cut(line, ":")
		}
		switch top {
		case "updates":
			updates += line + "\n"
			said = said || strings.Contains(line, "when")
		case "datasource":
			if _, value, ok := strings.Cut(line, "apply_full_imds_network_config:"); ok {
				c.full = strings.ToLower(strings.Trim(value, " }"))
			}
		}
	}
	if said {
		c.hotplug = map[bool]string{true: "on", false: "off"}[strings.Contains(updates, "hotplug")]
	}
}
