// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A dump is a command that prints rules, and the file for its output.
type dump struct {
	file    string              // in testdata
	command []string            // prints the rules
	tidy    func(string) string // removes text that differs between two recordings
}

var modes = map[string][]dump{
	"iptables": {
		{"iptables/v4.rules", []string{"iptables-save"}, tidySave},
		{"iptables/v6.rules", []string{"ip6tables-save"}, tidySave},
	},
	"nftables": {
		{"nftables/v4.rules", []string{"nft", "-s", "list", "table", "ip", "kube-proxy"}, tidyTable},
		{"nftables/v6.rules", []string{"nft", "-s", "list", "table", "ip6", "kube-proxy"}, tidyTable},
	},
}

// flags are the flags of kube-proxy, without those that inNamespace adds. The flag --cluster-cidr is missing, as in
// clusters whose pods have addresses of the VPC. So kube-proxy does not know which addresses belong to pods.
var flags = []string{
	"--hostname-override=" + nodeName,
	"--conntrack-max-per-core=0", // keep nf_conntrack_max, because kube-proxy cannot set it in a network namespace
}

// machineWide describes sysctls that kube-proxy does not set here, because of the flag --conntrack-max-per-core=0.
const machineWide = `# By default, kube-proxy also sets values of the whole machine: net/netfilter/nf_conntrack_max to 32768 for each CPU, at
# least 131072 and at most 1048576, and /sys/module/nf_conntrack/parameters/hashsize to at least a quarter of that.
`

// inNamespace records the rules that kube-proxy writes in the namespace of this process.
func inNamespace(mode, prog, version string) error {
	s, err := readScenario(filepath.Join(testdata, "scenario.json"))
	if err != nil {
		return err
	}
	if err := s.boot(); err != nil {
		return err
	}
	url, err := serveAPI(s.answersByPath())
	if err != nil {
		return err
	}
	before := sysctls()
	c := exec.Command(prog, append(flags, "--proxy-mode="+mode, "--master="+url)...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var messages strings.Builder
	c.Stdout, c.Stderr = &messages, &messages
	if err := c.Start(); err != nil {
		return err
	}
	err = awaitRules(s, modes[mode])
	err = errors.Join(err, c.Process.Kill())
	_ = c.Wait() // Wait returns an error because Kill has ended the process
	if err != nil {
		return fmt.Errorf("%w\nkube-proxy says:\n%s", err, &messages)
	}
	header := fmt.Sprintf("# Written by kube-proxy %s --proxy-mode=%s %s\n", version, mode, strings.Join(flags, " "))
	return writeFiles(header, modes[mode], filepath.Join(testdata, mode, "sysctls"), changedSysctls(before, sysctls()))
}

func (s scenario) boot() error {
	node := s.Hosts["node"]
	for _, args := range []string{
		"link set lo up",
		"link add eth0 type veth peer name vpc",
		"link set eth0 up",
		"address add " + node.V4.String() + "/24 dev eth0",
		"address add " + node.V6.String() + "/64 dev eth0 nodad",
	} {
		if _, err := output("ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	// The sysctls of connection tracking exist only after a rule has used connection tracking.
	_, err := output("nft", "add table inet t; add chain inet t c; add rule inet t c ct state new; delete table inet t")
	return err
}

// awaitRules waits until the dumps contain all Services, and have not changed for five seconds.
func awaitRules(s scenario, dumps []dump) error {
	const still = 5 // in seconds; an unfinished kube-proxy makes its next change within two seconds
	last, same := "", 0
	for range 60 {
		time.Sleep(time.Second)
		now, err := dumpText(dumps)
		if err != nil {
			return err
		}
		if now != last || !s.isComplete(now) {
			last, same = now, 0
			continue
		}
		if same++; same == still {
			return nil
		}
	}
	return errors.New("kube-proxy has not finished in a minute")
}

func (s scenario) isComplete(dump string) bool {
	return !slices.ContainsFunc(s.Services, func(v service) bool {
		return !strings.Contains(dump, v.ClusterIP.V4.String()) || !strings.Contains(dump, v.ClusterIP.V6.String())
	})
}

func dumpText(dumps []dump) (text string, err error) {
	for _, d := range dumps {
		out, e := exec.Command(d.command[0], d.command[1:]...).Output()
		if _, ok := errors.AsType[*exec.ExitError](e); !ok { // an ExitError means that there is no table yet
			err = errors.Join(err, e)
		}
		text += d.tidy(string(out))
	}
	return text, err
}

func writeFiles(header string, dumps []dump, file string, sysctls []string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	for _, d := range dumps {
		out, err := output(d.command[0], d.command[1:]...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(testdata, d.file), []byte(header+d.tidy(out)+"\n"), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(header+machineWide+strings.Join(sysctls, "\n")+"\n"), 0o644)
}

// tidySave removes three parts of the output of iptables-save: the comments, the policies of built-in chains, and the
// counters in nfacct. The comments contain the time. The policies are not from kube-proxy. If the kernel has no nfacct,
// kube-proxy omits the counters.
func tidySave(save string) string {
	var b strings.Builder
	for line := range strings.Lines(save) {
		switch {
		case strings.HasPrefix(line, "#"), strings.Contains(line, "localhost_nps_accepted_pkts"):
		case strings.HasPrefix(line, ":") && !strings.HasPrefix(line, ":KUBE-"):
		default:
			b.WriteString(strings.ReplaceAll(line, " -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts", ""))
		}
	}
	return strings.TrimSpace(b.String())
}

// tidyTable sorts the chains, sets and maps of a table, because kube-proxy creates them in any order. The first two
// lines are the table's name and comment.
func tidyTable(table string) string {
	lines := strings.SplitN(strings.TrimSuffix(strings.TrimSpace(table), "\n}"), "\n", 3)
	objects := strings.Split(lines[len(lines)-1], "\n\n")
	slices.Sort(objects)
	lines[len(lines)-1] = strings.Join(objects, "\n\n")
	return strings.Join(lines, "\n") + "\n}"
}

func sysctls() map[string]string {
	found := map[string]string{}
	const root = "/proc/sys"
	_ = filepath.WalkDir(root+"/net", func(path string, d os.DirEntry, err error) error {
		if b, err := os.ReadFile(path); err == nil {
			found[strings.TrimPrefix(path, root+"/")] = strings.TrimSpace(string(b))
		}
		return nil // some sysctls cannot be read
	})
	return found
}

// changedSysctls returns a line for each sysctl whose value has changed. It omits the kernel's counters, such as
// nf_conntrack_count.
func changedSysctls(before, after map[string]string) (lines []string) {
	for _, key := range slices.Sorted(maps.Keys(after)) {
		was, ok := before[key]
		if ok && was != after[key] && !strings.HasSuffix(key, "_count") {
			lines = append(lines, key+" = "+after[key])
		}
	}
	return lines
}
