# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.engines.fleet import Fleet as Fleet
from groupwise.engines.listening import listen_tls as listen_tls
from groupwise.engines.probe import Probe as Probe
from groupwise.engines.remote import Remote as Remote
from groupwise.engines.secret import read_secret as read_secret
from groupwise.engines.served import Served as Served
from groupwise.engines.server import EngineServer as EngineServer
from groupwise.engines.server import Identity as Identity
from groupwise.engines.server import servable as servable
from groupwise.engines.tls import HostKey as HostKey
from groupwise.engines.tls import TlsAddress as TlsAddress
from groupwise.engines.upload import Uploads as Uploads
from groupwise.engines.vllm_replicas import Vllm as Vllm
from groupwise.engines.weights_file import Exchange as Exchange
from groupwise.engines.weights_file import WeightsFile as WeightsFile
from groupwise.engines.weights_file import read_weights as read_weights
from groupwise.engines.weights_file import write_weights as write_weights
