#!/usr/bin/env python3
"""Packs the extension for VS Code: a .vsix is a zip of its files with a manifest, and needs nothing from outside."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: vsix.py [OUT.vsix]        then `code --install-extension OUT.vsix`
import json, os, sys, zipfile
from xml.sax.saxutils import escape, quoteattr

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER, LICENCE = os.path.join(HERE, "vscode"), os.path.join(HERE, "..", "..", "LICENSE")
TYPES = {"json": "application/json", "js": "application/javascript", "txt": "text/plain", "vsixmanifest": "text/xml"}


def manifest(package):
    """What the gallery's format says of the extension, from package.json."""
    return f"""<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id={quoteattr(package["name"])} Version={quoteattr(package["version"])}
              Publisher={quoteattr(package["publisher"])}/>
    <DisplayName>{escape(package["displayName"])}</DisplayName>
    <Description xml:space="preserve">{escape(package["description"])}</Description>
    <Categories>{escape(",".join(package["categories"]))}</Categories>
    <License>extension/LICENSE.txt</License>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value={quoteattr(package["engines"]["vscode"])}/>
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.License" Path="extension/LICENSE.txt" Addressable="true"/>
  </Assets>
</PackageManifest>
"""


def main():
    with open(os.path.join(FOLDER, "package.json")) as file:
        package = json.load(file)
    path = sys.argv[1] if len(sys.argv) > 1 else f"{package['name']}-{package['version']}.vsix"
    defaults = "".join(f'<Default Extension=".{end}" ContentType="{kind}"/>' for end, kind in TYPES.items())
    texts = {"extension.vsixmanifest": manifest(package),
             "[Content_Types].xml": '<?xml version="1.0" encoding="utf-8"?>\n<Types xmlns="http://schemas.openxml'
                                    f'formats.org/package/2006/content-types">{defaults}</Types>\n'}
    files = {"extension/" + name: os.path.join(FOLDER, name) for name in sorted(os.listdir(FOLDER))}
    for name, source in {**files, "extension/LICENSE.txt": LICENCE}.items():
        with open(source) as file:
            texts[name] = file.read()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in texts.items():  # of one date, so that the same files are the same bytes
            made.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    print(path)


if __name__ == "__main__":
    main()
