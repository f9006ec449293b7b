// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// A place is a process or a unit of systemd. A program of ours that asks EC2 gets its environment from a place.
type place struct {
	name     string
	env      aws.Environment
	severity string // of a finding about this place
	fails    string // what fails if a variable of the place has an invalid value
	correct  string // how an operator gives this place the environment of the runtime
}

// checkEndpoint looks at the variables that choose how a program asks EC2, for example the endpoint and a proxy. A
// plugin has the variables of the container runtime. The tool has the variables of its unit or of a shell. If the
// variables of plugin and tool differ, perhaps only the plugins or only the tool reach EC2.
func (p *Node) checkEndpoint(ctx context.Context) ([]Finding, error) {
	here := place{"this process", os.Getenv, warning, "this tool cannot ask EC2",
		"run doctor with the same variables: set -a; . " + environmentFile + "; " + cli.Name + " doctor"}
	runtimes, err := runtimePlaces()
	if err != nil {
		return nil, err
	}
	var region string
	if self, err := p.pool.Cloud.Instance(ctx); err == nil {
		region = self.Region
	} // other checks report the error; this check goes on without the region
	var found []Finding
	var first place
	var wanted []aws.Setting
	for _, at := range append(append(runtimes, p.unitPlaces(ctx)...), here) {
		if names := at.env.Unread(); len(names) > 0 {
			found = append(found, Finding{Severity: note, About: at.name, Means: "the environment has " +
				strings.Join(names, " and ") +
				", but plugins and tool do not read such variables, and use other credentials",
				Do: "if plugins and tool should use the role of the instance, do nothing. Otherwise set " +
					"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"})
		}
		settings, err := at.env.Settings(ctx, region)
		switch {
		case err != nil:
			found = append(found, Finding{Severity: at.severity, About: at.name, Means: at.fails + ": " + err.Error(),
				Do: aws.Hint(err)})
		case len(runtimes) == 0: // nothing to compare: this process sees no runtime, for example in a container
		case wanted == nil:
			first, wanted = at, settings
		default:
			if d := settingDifferences(settings, wanted); d != "" {
				found = append(found, Finding{Severity: warning, About: at.name,
					Means: "the variables for EC2 differ from those of the plugins, which have the environment of " +
						first.name + ": " + d, Do: at.correct})
			}
		}
	}
	return found, nil
}

// settingDifferences returns a text about the settings whose values differ between two lists. Both lists have the same
// settings in the same order.
func settingDifferences(these, those []aws.Setting) string {
	var all []string
	for i, s := range these {
		if o := those[i]; s.Value != o.Value {
			all = append(all, fmt.Sprintf("%s is %s, but for the plugins it is %s", s.Name, settingText(s),
				settingText(o)))
		}
	}
	return strings.Join(all, "; ")
}

func settingText(s aws.Setting) string {
	text := cmp.Or(s.Value, "not set")
	if s.By != "" {
		text += " (" + s.By + ")"
	}
	return text
}
