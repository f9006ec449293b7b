// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// environmentFile is the file of variables that our units read (systemd.exec(5), EnvironmentFile=). An administrator
// may have written it.
const environmentFile = "/etc/cni-ipvlan-vpc-k8s.env"

// environmentHeader is the first line of each environmentFile that install writes. If the file has no such line,
// install must not replace or remove the file.
const environmentHeader = "# Written by " + cli.Program + " install: its --env names the variables.\n"

// Lookup copies the named variables of this process into the environment of the units. It leaves out variables with an
// empty value. It returns an error for an invalid name, and for a variable that is not set. It also returns an error
// for a value with a line break or a single quotation mark.
func (i *Installation) Lookup(names []string) error {
	for _, name := range names {
		value, ok := os.LookupEnv(name)
		switch {
		case name == "" || strings.ContainsAny(name, " =#'\"\n"):
			return fmt.Errorf("%q is no name of a variable", name)
		case !ok:
			return fmt.Errorf("the variable %s is not set", name)
		case strings.ContainsAny(value, "'\n"):
			return fmt.Errorf("the value of %s has a line break or a single quotation mark, which the file for the "+
				"units cannot have", name)
		case value != "":
			i.env = append(i.env, name+"='"+value+"'\n")
		}
	}
	return nil
}

// putEnvironment writes environmentFile, which only root may read, because it may have secrets. If the units need no
// variable, putEnvironment removes the file of an earlier run. It keeps an administrator's file, because the runtime
// may need it, too.
func (i *Installation) putEnvironment() error {
	if len(i.env) == 0 || !i.Systemd {
		return i.removeEnvironment()
	}
	text, err := os.ReadFile(environmentFile)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && !bytes.HasPrefix(text, []byte(environmentHeader)):
		i.warnOfLacking(text)
		return nil
	}
	return i.putFile(nodeFile{path: environmentFile, mode: 0o600,
		text: []byte(environmentHeader + strings.Join(i.env, ""))})
}

// warnOfLacking warns if variables for the units are missing in an administrator's environmentFile. The argument text
// is the content of this file.
func (i *Installation) warnOfLacking(text []byte) {
	var lacks []string
	for _, line := range i.env {
		name, _, _ := strings.Cut(line, "=")
		if !strings.Contains("\n"+string(text), "\n"+name+"=") {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) > 0 {
		slog.Warn("the environment file of the units lacks variables. Install has not written this file, and "+
			"does not change it: add the variables to the file. Or delete the file, and run install again",
			"variables", strings.Join(lacks, ", "), "file", environmentFile)
	}
}

// removeEnvironment removes environmentFile if install has written it.
func (i *Installation) removeEnvironment() error {
	text, err := os.ReadFile(environmentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !bytes.HasPrefix(text, []byte(environmentHeader)) {
		return err
	}
	return i.removeFile(environmentFile)
}
