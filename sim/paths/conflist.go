// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"encoding/json"
	"fmt"
	"os"
)

// ReadConflist reads a conflist from a file, and sets the key dataPath of the first plugin. If the argument dataPath is
// empty, ReadConflist returns the text of the file.
func ReadConflist(file, dataPath string) ([]byte, error) {
	if dataPath == "" {
		return os.ReadFile(file)
	}
	return EditConflist(file, func(plugin map[string]any) error {
		plugin["dataPath"] = dataPath
		return nil
	})
}

// EditConflist reads a conflist from a file, and calls the function "edit" to change the keys of the first plugin.
func EditConflist(file string, edit func(plugin map[string]any) error) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var list map[string]json.RawMessage
	var plugins []map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := json.Unmarshal(list["plugins"], &plugins); err != nil || len(plugins) == 0 {
		return nil, fmt.Errorf("%s: plugins: want a list of objects", file)
	}
	if err := edit(plugins[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if list["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, err
	}
	return json.MarshalIndent(list, "", "  ")
}
